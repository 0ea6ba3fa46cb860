"""The tests of loading, over wheels of Hugging Face's ``kernels`` in a folder of their own: the newest, and the newest
that transformers takes. Half a minute each; where the index does not have the second, it is skipped."""

from pathlib import Path

import pytest

from tests.integrations.wheel_folder import install, run_tests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("which", ["newest", "taken by transformers"])
def test_the_folder_is_loaded_by_the_wheel(which: str, tmp_path: Path) -> None:
    constants = pytest.importorskip("transformers.utils.import_utils")
    wanted = f"kernels>={constants.KERNELS_MIN_VERSION},<{constants.KERNELS_MAX_VERSION}"
    install(tmp_path, ("kernels" if which == "newest" else wanted, "tomlkit"))
    run_tests(tmp_path, "tests/integrations/hub/test_hub_loading.py")
