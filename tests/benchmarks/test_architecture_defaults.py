"""Defaults by compiled resources: occupancy by hand, the rule where times are recorded, and a binary of each kind."""

from pathlib import Path
from typing import Any, Final

import pytest

from autotune.device import architecture
from autotune.platforms import target_device
from autotune.search_spaces.flash_attention import triton as flash_attention
from autotune.search_spaces.flash_attention_varlen import triton as flash_attention_varlen
from autotune.search_spaces.paged_prefill import triton as paged_prefill
from autotune.space import Config
from autotune.trial import Resources
from benchmarks.architecture_defaults import __main__ as command
from benchmarks.architecture_defaults.classes import (
    FAMILIES,
    TILES_OF_16_BITS,
    TILES_OF_FLOAT32,
    classes,
    first_candidates,
    second_candidates,
)
from benchmarks.architecture_defaults.compiling import Compiler
from benchmarks.architecture_defaults.occupancy import LIMITS, blocks_at_once
from benchmarks.architecture_defaults.rule import rank

CLASSES: Final = {str(each): each for each in classes()}
DENSE: Final = CLASSES["flash_attention/triton, bfloat16, heads of 128"]
A100: Final = target_device("sm_80")


def tile(**values: Any) -> Config:
    default = DENSE.implementation.space.default(DENSE.shape, A100)
    return Config({**default, **values})


@pytest.mark.parametrize(
    ("arch", "warps", "registers", "shared", "blocks"),
    [
        ("sm_90", 4, 128, 49208, 4),  # each scheduler has 16384 registers: four warps of 128 x 32
        ("sm_90", 4, 129, 49208, 3),  # 136 after rounding
        ("sm_90", 8, 170, 98360, 1),  # two warps of 176 x 32 a scheduler
        ("sm_90", 4, 170, 98360, 2),
        ("sm_80", 4, 64, 82945, 1),  # twice 81 KiB, with 1 KiB each, are 164 KiB
        ("sm_80", 4, 64, 82944, 2),
        ("sm_86", 1, 24, 0, 16),  # its places for blocks
        ("sm_86", 8, 32, 1024, 6),  # 48 places for warps
        ("sm_89", 1, 24, 0, 24),
        ("gfx942", 8, 50, 0, 4),  # llvm-calc-occupancy's own example: 8 waves an EU, 32 a compute unit
        ("gfx942", 4, 128, 16384, 4),
        ("gfx942", 4, 256, 16384, 2),
        ("gfx942", 4, 257, 16384, 1),
        ("gfx942", 4, 128, 32769, 1),
    ],
)
def test_blocks_at_once_by_hand(arch: str, warps: int, registers: int, shared: int, blocks: int) -> None:
    resources = Resources(shared_bytes=shared, registers=registers, spill_bytes=0)
    assert blocks_at_once(resources, warps, architecture(arch)) == blocks


def test_of_an_unknown_binary_no_block_fits() -> None:
    assert blocks_at_once(Resources(), 4, architecture("sm_80")) == 0
    assert set(LIMITS) == {"sm_90", *(arch for family in FAMILIES for arch in family)}


SMALL: Final = tile(BLOCK_Q=64, BLOCK_K=32, num_warps=4)
FEW_KEYS: Final = tile(BLOCK_Q=128, BLOCK_K=16, num_warps=4)
LARGE: Final = tile(BLOCK_Q=128, BLOCK_K=64, num_warps=8)
HUGE: Final = tile(BLOCK_Q=128, BLOCK_K=128, num_warps=8)
SHORT: Final = tile(BLOCK_Q=64, BLOCK_K=64, num_warps=4, num_stages=2)


@pytest.mark.parametrize(
    ("found", "best"),
    [
        ({SMALL: (128, 0, 40_000), LARGE: (128, 8, 40_000)}, SMALL),  # no spills
        ({SMALL: (255, 16, 40_000), LARGE: (255, 8, 40_000)}, LARGE),  # or the fewest
        ({SMALL: (255, 0, 160_000), LARGE: (128, 8, 40_000)}, LARGE),  # but eight warps before
        ({SMALL: (128, 0, 40_000), LARGE: (128, 0, 170_000)}, SMALL),  # and those that fit before those
        ({SMALL: (128, 0, 40_000), FEW_KEYS: (128, 0, 40_000)}, SMALL),
        ({SMALL: (128, 0, 100_000), LARGE: (255, 0, 100_000)}, LARGE),  # eight warps
        ({SMALL: (128, 0, 40_000), SHORT: (128, 0, 40_000)}, SMALL),  # three stages
        ({SMALL: (200, 0, 40_000), HUGE: (200, 0, 40_000)}, HUGE),  # 64 x 32 twice is less than half of 128 x 128
        ({SMALL: (128, 0, 30_000), LARGE: (200, 0, 40_000)}, SMALL),  # four times is more than half of 128 x 64
    ],
)
def test_the_rule_ranks_in_this_order(found: dict[Config, tuple[int, int, int]], best: Config) -> None:
    compiled = {config: Resources(shared, registers, spilled) for config, (registers, spilled, shared) in found.items()}
    assert rank(compiled, A100)[0].config == best
    assert rank(dict(reversed(compiled.items())), A100)[0].config == best


@pytest.mark.slow
def test_the_rule_comes_near_the_best_of_every_sweep() -> None:
    found = command.costs_on_sweeps(("descriptor", "pointer"))
    assert len(found) == 12
    assert max(row.of_all for row in found) <= 1.03
    pointers = command.costs_on_sweeps(("pointer",))
    assert all(row.config["loads"] == "pointer" and row.of_its_loads <= 1.12 for row in pointers)


def test_candidates_are_valid_few_and_from_the_sources() -> None:
    for problem in CLASSES.values():
        for arch in (arch for family in FAMILIES for arch in family):
            device = target_device(arch)
            first = first_candidates(problem, device)
            assert first[0] == problem.implementation.space.default(problem.shape, device)
            assert len({Config({**each, "loads": ""}) for each in first}) <= 12
            assert {config.get("loads") for config in first} <= {None, "pointer", "descriptor"}
            for config in (*first, *second_candidates(problem, device, first)):
                assert problem.implementation.space.why_invalid(config, problem.shape, device) is None


@pytest.mark.parametrize("space", [flash_attention, flash_attention_varlen, paged_prefill], ids=str)
def test_the_tiles_of_spaces_are_candidates(space: Any) -> None:
    for tables, sourced in ((space.TILES_OF_16_BITS, TILES_OF_16_BITS), (space.TILES_OF_FLOAT32, TILES_OF_FLOAT32)):
        assert {tuple(chosen[:3]) for tiles in tables.values() for chosen in tiles} <= set(sourced)


class FakeCompiler(Compiler):
    """Compiles nothing: every config takes what a table says, by its tile."""

    def __init__(self, arch: str, *, jobs: int) -> None:
        self.device = target_device(arch)
        self.forms: list[tuple[bool, bool]] = []

    def __exit__(self, *raised: object) -> None:
        pass

    def compile(self, problem: Any, shape: Any, configs: Any, *, every_output: bool = False) -> dict[Config, Resources]:
        self.forms.append((getattr(shape, "causal", True), every_output))
        # With its log-sum-exp the largest tile spills.
        return {
            config: Resources(40_000, 200, 8 if every_output and config["BLOCK_Q"] == config["BLOCK_K"] == 128 else 0)
            for config in configs
        }


def test_the_best_are_confirmed_in_every_form_in_which_they_are_served() -> None:
    compiler = FakeCompiler("sm_80", jobs=1)
    ranking = compiler.ranked(DENSE)
    assert set(compiler.forms) == {(True, False), (True, True), (False, False)}
    spilling = [each for each in ranking if each.resources.spill_bytes]
    assert {each.config["BLOCK_Q"] for each in spilling} == {128}
    assert ranking[-len(spilling) :] == spilling  # it was the best before
    assert ranking[0].resources.spill_bytes == 0


@pytest.mark.parametrize(("is_kept", "code"), [(True, None), (False, "of 1 classes the space's default is not")])
def test_a_default_that_the_rule_does_not_choose_ends_the_command(
    is_kept: bool, code: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Compiler", FakeCompiler)
    chosen = FakeCompiler("sm_80", jobs=1).ranked(DENSE)[0].config
    space = DENSE.implementation.space
    default = chosen if is_kept else SMALL
    monkeypatch.setattr(command, "classes", lambda: iter([DENSE]))
    monkeypatch.setattr(type(space), "default", property(lambda space: lambda shape, device: default), raising=False)
    arguments = ["--arch", "sm_80", "--operation", "flash_attention", "--dtype", "bfloat16"]
    monkeypatch.setattr(command, "print_costs", lambda: None)
    if code is None:
        command.main(arguments)
    else:
        with pytest.raises(SystemExit, match=code):
            command.main(arguments)
    text = capsys.readouterr().out
    assert "sm_80: flash_attention/triton, bfloat16, heads of 128" in text
    assert ("chosen and default" in text) == is_kept


@pytest.mark.parametrize("arch", [arch for family in FAMILIES for arch in family])
@pytest.mark.slow
def test_a_default_of_each_architecture_fits_and_spills_nothing(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with Compiler(arch, jobs=1) as compiler:
        for problem in (DENSE, CLASSES["paged_decode/triton, bfloat16, heads of 64"]):
            default = problem.implementation.space.default(problem.shape, compiler.device)
            (found,) = rank(compiler.compile(problem, problem.shape, [default]), compiler.device)
            assert not found.is_poor, command.text_of(found)
            assert found.resources.spill_bytes == 0
            assert (found.resources.shared_bytes or 0) <= compiler.device.shared_memory_bytes


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command.main(["--help"])
    assert "python -m benchmarks.architecture_defaults" in capsys.readouterr().out
