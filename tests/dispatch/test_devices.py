"""Whose rows a device is served: its own, then those of its model under another power cap; and what a name means."""

import re
from dataclasses import replace
from typing import Any, Final

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import device_by_name, get_kernel, reload
from autotune.errors import MissingDependencyError, NoTunedKernelError
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from tests import sample
from tests.dispatch.tables import CAPPED, H200, PAGED, SLOWER, Tables

UNRECORDED: Final = "the space's default, as no recording of triton on sm_90 ships"


def _no_gpu(index: int = 0) -> Device:
    raise MissingDependencyError("no GPU is visible")


def test_another_power_cap_is_the_same_model(tables: Tables) -> None:
    row = sample.trial(device=CAPPED)
    tables.ship(row)
    why = get_kernel(sample.shape()).provenance
    assert (why.rung, why.row) == ("same model", row)
    assert why.reason == "tuned for this shape on NVIDIA H200 at a power cap of 500 W, not a power cap of 700 W here"


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
        f"no tuned shape of flash_attention/triton or gluon_hopper on NVIDIA H200 (sm_90): {UNRECORDED}",
    )


def test_a_name_ignores_the_cap_and_takes_the_highest(tables: Tables) -> None:
    tables.ship(sample.trial(device=CAPPED), sample.trial(chosen=SLOWER))
    assert get_kernel(sample.shape(), device=H200).config == SLOWER
    tables.ship(sample.trial(device=CAPPED))
    kernel = get_kernel(sample.shape(), device=H200)
    assert (kernel.config, kernel.provenance.rung) == (sample.FAST, "exact")


@pytest.mark.parametrize("name", ["nvidia h200", "NVIDIA  H200 ", "h200", "nvidia_h200", "NVIDIA-H200", "H200 SXM"])
def test_names_match_in_any_case_and_without_their_brand(tables: Tables, name: str) -> None:
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
        where = "flash_attention/triton or gluon_hopper on NVIDIA H100 (sm_90)"
        assert why.reason == f"no tuned shape of {where}: {UNRECORDED}"


@pytest.mark.parametrize(
    ("name", "is_like"),
    [
        *((name, True) for name in ("NVIDA H200", "nvidai h200", "NVDIA H200")),
        *((name, False) for name in ("NVIDIA H300", "NVIDIA B20", "NVIDIA H20", "NVIDIA H200 NVL", "NVIDIA", "foo")),
    ],
)
def test_only_a_misspelling_is_said_to_be_like_a_name(tables: Tables, name: str, is_like: bool) -> None:
    with pytest.warns(RuntimeWarning, match="no table knows the device"):
        why = get_kernel(sample.shape(), device=name).provenance
    hint = "; did you mean 'NVIDIA H200'?" if is_like else ""
    assert (why.rung, why.reason) == (
        "default",
        f"no table knows the device {name}, taken for an sm_90: the space's default{hint}",
    )


# What nvidia-smi and rocminfo print, or a seller's short name; and the architecture that each vendor states for it.
MEANT: Final = {
    "A100": ("NVIDIA A100-SXM4-80GB", "sm_80"),
    "nvidia a100-sxm4-40gb": ("NVIDIA A100-SXM4-40GB", "sm_80"),
    "A10": ("NVIDIA A10", "sm_86"),
    "H100": ("NVIDIA H100 80GB HBM3", "sm_90"),
    "NVIDIA H100": ("NVIDIA H100 80GB HBM3", "sm_90"),
    "h100 pcie": ("NVIDIA H100 PCIe", "sm_90"),
    "H200": ("NVIDIA H200", "sm_90"),
    "NVIDIA GH200": ("NVIDIA GH200 480GB", "sm_90"),
    "B200": ("NVIDIA B200", "sm_100"),
    "RTX 4090": ("NVIDIA GeForce RTX 4090", "sm_89"),
    "GeForce RTX 5090": ("NVIDIA GeForce RTX 5090", "sm_120"),
    "L4": ("NVIDIA L4", "sm_89"),
    "L40S": ("NVIDIA L40S", "sm_89"),
    "MI300X": ("AMD Instinct MI300X", "gfx942"),
    "AMD MI355X": ("AMD Instinct MI355X", "gfx950"),
    "sm_80": ("sm_80", "sm_80"),
    "SM90": ("sm_90", "sm_90"),
    "gfx942": ("gfx942", "gfx942"),
}


@pytest.mark.parametrize("name", MEANT)
def test_a_known_name_gets_the_default_of_its_architecture_and_no_warning(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(platforms, "current_device", _no_gpu)
    kernel = get_kernel(sample.shape(), device=name)
    meant, arch = MEANT[name]
    kind = ", an architecture and no device" if meant == arch else f" ({arch})"
    is_compiled = arch not in ("sm_90", "sm_100")
    basis = "chosen by compiled resources, as no recording of" if is_compiled else "as no recording of triton on"
    others = " or gluon_hopper" if arch == "sm_90" else ""
    why = f"no tuned shape of flash_attention/triton{others} on {meant}{kind}"
    assert kernel.provenance.reason == f"{why}: the space's default, {basis} {arch} ships"
    assert (kernel.provenance.default, kernel.provenance.is_unrecorded) == ("space's default", True)
    assert kernel.config["num_stages"] == (1 if arch.startswith("gfx") else 3)
    with pytest.raises(NoTunedKernelError, match=f"flash_attention: {re.escape(why)}; shape: "):  # it is not served
        get_kernel(sample.shape(), device=name, on_miss="error")
    assert (kernel.config["kpack"] is None) == arch.startswith("sm")


@pytest.mark.parametrize(("tuned", "asked"), [("NVIDIA H200", "H100"), ("NVIDIA H100 80GB HBM3", "H200")])
def test_one_model_is_never_taken_for_another(tables: Tables, tuned: str, asked: str) -> None:
    tables.tune(sample.trial(device=replace(NVIDIA_H200, name=tuned)))
    assert get_kernel(sample.shape(), device=tuned.split()[1]).provenance.rung == "exact"
    assert get_kernel(sample.shape(), device=asked).provenance.rung == "default"
    assert get_kernel(sample.shape(), device="sm_90").provenance.rung == "default"


def test_a_device_that_another_operation_was_tuned_on_is_known(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "current_device", _no_gpu)
    tables.tune(sample.trial(device=replace(NVIDIA_H200, name="NVIDIA Z900")))
    for name in ("NVIDIA Z900", "z900", H200):
        why = get_kernel(PAGED, device=name).provenance
        known = "NVIDIA H200" if name == H200 else "NVIDIA Z900"
        assert why.reason == f"no tuned shape of paged_decode/triton on {known} (sm_90): {UNRECORDED}"
    with pytest.warns(RuntimeWarning, match="did you mean 'NVIDIA Z900'"):
        why = get_kernel(PAGED, device="nvida z900").provenance
    assert (
        why.reason
        == "no table knows the device nvida z900, taken for an sm_80: the space's default; did you mean 'NVIDIA Z900'?"
    )


def test_without_a_name_and_a_gpu_is_an_error(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "current_device", _no_gpu)
    with pytest.raises(MissingDependencyError, match="no GPU"):
        get_kernel(sample.shape())


@pytest.mark.parametrize(
    "changes",
    [{"arch": "gfx942"}, {"memory_mib": 1}, {"sm_count": 1}, {"arch": "gfx942", "power_cap_watts": 1000}],
    ids=str,
)
def test_a_row_of_the_user_does_not_make_another_gpu_of_a_name_that_ships(
    tables: Tables, changes: dict[str, Any]
) -> None:
    tables.ship(sample.trial(chosen=SLOWER))
    device = replace(NVIDIA_H200, **{"power_cap_watts": 900, **changes})
    tables.tune(sample.trial(device=device, chosen=IMPLEMENTATION.space.default(sample.shape(), device)))
    kernel = get_kernel(sample.shape(), device=H200)
    assert (kernel.config, kernel.provenance.origin) == (SLOWER, "shipped")


def test_a_row_of_another_vendor_does_not_take_a_known_name(tables: Tables) -> None:
    device = replace(NVIDIA_H200, arch="gfx942")
    tables.tune(sample.trial(device=device, chosen=IMPLEMENTATION.space.default(sample.shape(), device)))
    assert get_kernel(sample.shape(), device=H200).provenance.rung == "default"
    assert device_by_name(H200) == NVIDIA_H200
