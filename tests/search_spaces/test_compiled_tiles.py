"""Devices that have tiles by compiled resources: those of whose architectures no recording ships."""

import pytest

from autotune.platforms import target_device
from autotune.search_spaces.compiled_tiles import compiled_tile, default_basis, kind_of_unrecorded
from autotune.search_spaces.flash_attention.triton import TILES_OF_16_BITS
from autotune.table import shipped_winners

KINDS = {
    "sm_80": "large",
    "sm_86": "small",
    "sm_87": "large",
    "sm_89": "small",
    "sm_90": None,
    "sm_100": None,
    "sm_103": None,
    "sm_110": None,
    "sm_120": "small with tensor maps",
    "sm_121": "small with tensor maps",
    "gfx90a": "waves",
    "gfx942": "waves",
    "gfx950": "waves",
}


@pytest.mark.parametrize(("arch", "kind"), KINDS.items())
def test_a_device_has_the_kind_of_its_instructions_and_memory(arch: str, kind: str | None) -> None:
    device = target_device(arch)
    assert kind_of_unrecorded(device) == kind
    said = f"chosen by compiled resources, as no recording of {arch} ships"
    assert default_basis(device) == ("" if kind is None else said)


def test_the_tile_is_that_of_the_padded_width() -> None:
    found = [compiled_tile(TILES_OF_16_BITS, width, target_device("sm_80")) for width in (16, 64, 128, 256)]
    narrow, medium, wide = TILES_OF_16_BITS["large"]
    assert found == [narrow, narrow, medium, wide]
    assert compiled_tile(TILES_OF_16_BITS, 64, target_device("sm_90")) is None


def test_nothing_ships_for_these_kinds() -> None:
    recorded = {
        trial.device.arch
        for operation in ("flash_attention", "flash_attention_varlen", "paged_decode", "paged_prefill")
        for trial in shipped_winners(operation)
    }
    assert {KINDS[arch] for arch in recorded} == {None}
