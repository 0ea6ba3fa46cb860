"""A miss raises or notes the shape, as ``on_miss`` says."""

import pytest

from autotune.dispatch import get_kernel
from autotune.errors import NoTunedKernelError
from autotune.search_spaces.flash_attention.operation import OPERATION
from autotune.table import read_misses
from tests import sample
from tests.dispatch.tables import H200, Tables


def test_on_miss_error_raises_only_for_a_miss(tables: Tables) -> None:
    tables.ship(sample.trial())
    assert get_kernel(sample.shape(), device=H200, on_miss="error").provenance.rung == "exact"
    assert get_kernel(sample.shape(batch=15), device=H200, on_miss="error").provenance.rung == "nearest"
    with pytest.raises(NoTunedKernelError) as caught:
        get_kernel(sample.shape(batch=1), device=H200, on_miss="error")
    message = str(caught.value)
    where = "flash_attention/triton or gluon_hopper on NVIDIA H200"
    assert message.startswith(f"flash_attention: no tuned shape of {where} is within")
    assert " is 4.00 away; shape: batch 1, 16 heads" in message
    assert "default" not in message  # it was not served


def test_a_miss_on_an_unknown_device_hints_at_the_name_that_was_meant(tables: Tables) -> None:
    with (
        pytest.warns(RuntimeWarning, match="space's default; did you mean"),
        pytest.raises(NoTunedKernelError) as caught,
    ):
        get_kernel(sample.shape(), device="NVDIA H200", on_miss="error")
    unknown = "no table knows the device NVDIA H200, taken for an sm_90; did you mean 'NVIDIA H200'?"
    expected = f"flash_attention: {unknown}; shape: batch 16"
    assert str(caught.value).startswith(expected)


def test_on_miss_record_notes_each_missed_shape_once(tables: Tables) -> None:
    tables.ship(sample.trial())
    missed = [sample.shape(batch=1), sample.shape(window=256)]
    for shape in (sample.shape(), *missed, *missed):
        get_kernel(shape, device=H200, on_miss="record")
    assert read_misses() == [(OPERATION, shape) for shape in missed]
    assert len((tables.home / "misses.jsonl").read_text().splitlines()) == 2
