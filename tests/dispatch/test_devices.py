"""Whose rows a device is served: its own, then those of its model under another power cap; and what a name means."""

from dataclasses import replace

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import get_kernel, reload
from autotune.errors import MissingDependencyError
from tests import sample
from tests.dispatch.tables import CAPPED, H200, PAGED, SLOWER, Tables


def _no_gpu(index: int = 0) -> Device:
    raise MissingDependencyError("no GPU is visible")


def test_another_power_cap_is_the_same_model(tables: Tables) -> None:
    row = sample.trial(device=CAPPED)
    tables.ship(row)
    why = get_kernel(sample.shape()).provenance
    assert (why.rung, why.row) == ("same model", row)
    assert why.reason == "tuned for this shape on NVIDIA H200 at 500 W, not the 700 W here"


def test_a_row_of_another_driver_is_of_this_device(tables: Tables) -> None:
    """Its memory differs by a few MiB: it is still what the user measured here, and comes before what ships."""
    tables.ship(sample.trial(chosen=SLOWER))
    tables.tune(row := sample.trial(device=replace(NVIDIA_H200, memory_mib=NVIDIA_H200.memory_mib - 4)))
    why = get_kernel(sample.shape()).provenance
    assert (why.rung, why.row, why.origin) == ("exact", row, "user")
    assert why.reason == "tuned for this shape on NVIDIA H200"


def test_a_near_shape_at_this_cap_comes_before_the_very_shape_at_another(tables: Tables) -> None:
    near = sample.trial(sample.shape(batch=17), SLOWER)
    tables.ship(sample.trial(device=CAPPED), near)
    assert get_kernel(sample.shape()).provenance.row == near


def test_of_other_caps_the_nearest_comes_first(tables: Tables) -> None:
    caps = (300, 600, 400)
    tables.ship(*[sample.trial(device=replace(NVIDIA_H200, power_cap_watts=cap)) for cap in caps])
    row = get_kernel(sample.shape()).provenance.row
    assert row is not None
    assert row.device.power_cap_watts == 600


def test_another_model_of_the_same_architecture_is_not_trusted(tables: Tables) -> None:
    tables.tune(sample.trial(device=replace(NVIDIA_H200, name="NVIDIA H100", memory_mib=81559)))
    why = get_kernel(sample.shape()).provenance
    assert (why.rung, why.reason) == (
        "default",
        "no tuned shape of flash_attention/triton on NVIDIA H200: the space's default",
    )


def test_a_name_ignores_the_cap_and_takes_the_highest(tables: Tables) -> None:
    tables.ship(sample.trial(device=CAPPED), sample.trial(chosen=SLOWER))
    assert get_kernel(sample.shape(), device=H200).config == SLOWER
    tables.ship(sample.trial(device=CAPPED))
    kernel = get_kernel(sample.shape(), device=H200)
    assert (kernel.config, kernel.provenance.rung) == (sample.FAST, "exact")


@pytest.mark.parametrize("name", ["nvidia h200", "NVIDIA  H200 ", "Nvidia H200"])
def test_names_match_in_any_case(tables: Tables, name: str) -> None:
    tables.ship(sample.trial(device=CAPPED), sample.trial(chosen=SLOWER))
    kernel = get_kernel(sample.shape(), device=name)
    assert (kernel.config, kernel.provenance.rung) == (SLOWER, "exact")


def test_an_unknown_name_gets_the_default_and_is_told(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.ship(sample.trial())
    for current in (lambda index=0: NVIDIA_H200, _no_gpu):
        reload()
        monkeypatch.setattr(platforms, "current_device", current)
        with pytest.warns(RuntimeWarning, match=r"device='Voodoo 2': no table knows the device Voodoo 2") as caught:
            kernel = get_kernel(sample.shape(), device="Voodoo 2")
        assert (len(caught), caught[0].filename) == (1, __file__)
        assert (kernel.provenance.rung, kernel.provenance.distance) == ("default", None)
        assert "Voodoo 2" in kernel.provenance.reason
        assert get_kernel(sample.shape(), device="Voodoo 2") is kernel  # and warns once


def test_a_gpu_without_a_table_gets_the_default_quietly(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.ship(sample.trial())
    here = replace(NVIDIA_H200, name="NVIDIA H100", memory_mib=81559)
    monkeypatch.setattr(platforms, "current_device", lambda index=0: here)
    for name in (None, "NVIDIA H100", "nvidia h100"):
        why = get_kernel(sample.shape(), device=name).provenance
        assert why.reason == "no tuned shape of flash_attention/triton on NVIDIA H100: the space's default"


@pytest.mark.parametrize(
    ("name", "is_like"),
    [
        *((name, True) for name in ("H200", "h200", "NVIDA H200", "nvidai h200", "nvidia_h200", "NVIDIA-H200")),
        *((name, False) for name in ("NVIDIA H100", "NVIDIA B200", "NVIDIA GH200", "NVIDIA H200 NVL", "NVIDIA", "foo")),
    ],
)
def test_only_a_misspelling_is_said_to_be_like_a_name(tables: Tables, name: str, is_like: bool) -> None:
    with pytest.warns(RuntimeWarning, match="no table knows the device"):
        why = get_kernel(sample.shape(), device=name).provenance
    hint = "; did you mean 'NVIDIA H200'?" if is_like else ""
    assert (why.rung, why.reason) == ("default", f"no table knows the device {name}: the space's default{hint}")


def test_a_device_that_another_operation_was_tuned_on_is_known(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "current_device", _no_gpu)
    tables.tune(sample.trial(device=replace(NVIDIA_H200, name="NVIDIA B200")))
    for name in ("NVIDIA B200", H200):
        why = get_kernel(PAGED, device=name).provenance
        assert why.reason == f"no tuned shape of paged_decode/triton on {name}: the space's default"
    with pytest.warns(RuntimeWarning, match="did you mean 'NVIDIA B200'"):
        why = get_kernel(PAGED, device="b200").provenance
    assert why.reason == "no table knows the device b200: the space's default; did you mean 'NVIDIA B200'?"


def test_without_a_name_and_a_gpu_is_an_error(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "current_device", _no_gpu)
    with pytest.raises(MissingDependencyError, match="no GPU"):
        get_kernel(sample.shape())
