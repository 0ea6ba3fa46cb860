"""The folder by the ``kernels`` and the transformers that are installed.

Without ``kernels`` these are skipped; ``test_hub_wheel.py`` installs its wheel, and runs them.
"""

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import pytest

from autotune.errors import MissingDependencyError
from autotune.integrations.hub import FOLDER, NAME, register
from tests.contract.interpreting import interpret

pytest.importorskip("transformers")
try:
    FOUND: Final = version("kernels")  # the checkout's folder of that name could be imported too
except PackageNotFoundError:
    pytest.skip("Hugging Face's kernels is not installed", allow_module_level=True)

from tests.integrations.hub import hub_calls


@pytest.mark.parametrize("dtype", hub_calls.TOLERANCES)
@pytest.mark.parametrize("way", ["get_local_kernel", "get_kernel"])
def test_what_kernels_loads_computes_what_torch_does(way: str, dtype: str) -> None:
    assert interpret(hub_calls.sdpa_difference, way, dtype) is None


def test_transformers_is_given_the_folder_or_its_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import is_kernels_available

    monkeypatch.setenv("LOCAL_KERNELS", "")
    if is_kernels_available():
        register()
        assert os.environ["LOCAL_KERNELS"] == f"{NAME}={FOLDER}"
    else:
        with pytest.raises(MissingDependencyError, match=rf"by kernels>=.*, and kernels {FOUND} is instal"):
            register()


@pytest.mark.parametrize(("name", "side"), [("llama", "none"), ("gemma2", "left"), ("gemma3", "right")])
def test_logits_are_those_of_eager_attention(name: str, side: str) -> None:
    assert interpret(hub_calls.logits_difference, name, side) is None


def test_sequences_packed_by_positions_are_those_of_eager_attention() -> None:
    assert interpret(hub_calls.packed_difference, "gemma3") is None


def test_continuous_batching_generates_what_eager_attention_does() -> None:
    assert interpret(hub_calls.continuous_difference, "llama") is None
