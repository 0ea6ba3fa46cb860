"""The public face: what ``autotune`` exports."""

import subprocess
import sys
from types import FunctionType

import pytest

import autotune


def test_all_is_exactly_what_is_public() -> None:
    values = {name: getattr(autotune, name) for name in dir(autotune)}
    ours = {name for name, value in values.items() if getattr(value, "__module__", "").startswith("autotune.")}
    public = {name for name in ours if isinstance(values[name], FunctionType | type)}
    assert sorted(public | {"__version__"}) == sorted(autotune.__all__)


def test_what_tunes_is_imported_on_first_use() -> None:
    code = "import autotune, sys; print(*{'optuna', 'pyarrow'} & {*sys.modules}); print(autotune.tune.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "autotune.tuning.tuner"]
    with pytest.raises(AttributeError, match="'autotune' has no attribute 'tuning_of'"):
        _ = autotune.tuning_of


def test_what_serves_is_kept_once_it_was_imported() -> None:
    code = "import autotune; autotune.get_kernel; print('get_kernel' in vars(autotune), 'tune' in vars(autotune))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_device_of_a_row_is_known_wherever_the_package_is() -> None:
    code = "from autotune.device import NVIDIA_H200; print(NVIDIA_H200.has('wgmma'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


def test_everything_public_is_documented() -> None:
    assert [name for name in autotune.__all__ if not getattr(autotune, name).__doc__] == []
