"""Rows of flash attention as a search would have left them: winners, and a sweep to replay; and folders to serve."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import pytest

from autotune import dispatch, platforms
from autotune.device import NVIDIA_H200
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.shape import AttentionShape, Shape
from autotune.space import Config
from autotune.table import (
    Assignment,
    Compilation,
    shipped_compilations,
    shipped_grid,
    shipped_outsiders,
    shipped_portfolios,
    shipped_sweeps,
    shipped_winners,
)
from autotune.table.inventory import all_roots
from autotune.trial import Candidate, Outcome, Policy, Resources, Stage, Status, Timing, Toolchain, Trial

START: Final = datetime(2026, 11, 21, 6, tzinfo=UTC)
TOOLCHAIN: Final = Toolchain("0.1.0", triton="3.6.0", ptxas="12.8.93", torch="2.13.0", cuda="13.0", driver="580.1")
FAST: Final = Config(
    BLOCK_Q=128,
    BLOCK_K=128,
    num_warps=8,
    num_stages=2,
    loads="descriptor",
    waves_per_eu=None,
    matrix_instr_nonkdim=None,
    kpack=None,
)


def shape(seq: int = 1024, **changes: Any) -> AttentionShape:
    """The command line's default problem at that length."""
    fields = {"batch": max(1, 16384 // seq), "heads": 16, "seq_q": seq, "head_dim": 128, "causal": True}
    return AttentionShape(**{**fields, **changes})


def config(**changes: Any) -> Config:
    """A config that is valid wherever the tests put it, with these parameters."""
    return Config({**FAST, **changes})


def timing(median: float, spread: float = 0.005) -> Timing:
    """A time whose interval reaches that part of the median to either side."""
    return Timing(median, median * (1 - spread), median * (1 + spread), 15)


def candidate(chosen: Config = FAST, implementation: str = "triton") -> Candidate:
    """A config of an implementation of flash attention."""
    return Candidate(implementation, chosen)


def trial(problem: Shape | None = None, chosen: Config = FAST, implementation: str = "triton", **changes: Any) -> Trial:
    """The winner of a race on the H200; fields of the outcome may be given beside the trial's own."""
    outcome: dict[str, Any] = {
        "candidate": candidate(chosen, implementation),
        "status": Status.OK,
        "timing": timing(200.0),
        "error": 0.001,
        "error_limit": 0.004,
        "resources": Resources(shared_bytes=98304, registers=168, spill_bytes=0),
    }
    fields: dict[str, Any] = {
        "operation": IMPLEMENTATION.operation,
        "source_hash": IMPLEMENTATION.source_hash,
        "shape": problem or shape(),
        "device": NVIDIA_H200,
        "toolchain": TOOLCHAIN,
        "executor": "gpu",
        "policy": Policy(),
        "study": "study",
        "seed": 0,
        "number": 1,
        "worker": "host:1",
        "started_at": START,
        "stage": Stage.RACE,
        "race_id": "race-1",
        "default_timing": timing(240.0),
        "baseline": "sdpa cudnn",
        "baseline_timing": timing(210.0),
        "tflops": 344.0,
        "gbps": 1342.0,
    }
    for name, value in changes.items():
        (outcome if name in Outcome.__dataclass_fields__ else fields)[name] = value
    return Trial(**fields, outcome=Outcome(**outcome))


def assignment(problem: AttentionShape | None = None, chosen: Config = FAST, **changes: Any) -> Assignment:
    """A shape that an H200 recorded in full, and the member of the portfolio of sm_90 that it is assigned."""
    fields: dict[str, Any] = {
        "operation": IMPLEMENTATION.operation,
        "implementation": IMPLEMENTATION.name,
        "device": NVIDIA_H200,
        "shape": problem or shape(),
        "config": chosen,
        "is_default": False,
        "timed": 300,
        "regret": 0.0,
        "default_regret": 0.25,
        "left_out_regret": 0.01,
        "source_hash": IMPLEMENTATION.source_hash,
        "triton_version": TOOLCHAIN.triton,
    }
    return Assignment(**{**fields, **changes})


def compilation(triton: str, problem: AttentionShape | None = None, chosen: Config = FAST, **found: Any) -> Compilation:
    """Make the record of a config by a version of Triton: without a spill, unless ``found`` says otherwise."""
    fields: dict[str, Any] = {
        "operation": IMPLEMENTATION.operation,
        "implementation": IMPLEMENTATION.name,
        "device": NVIDIA_H200,
        "shape": problem or shape(),
        "config": chosen,
        "source_hash": IMPLEMENTATION.source_hash,
        "triton_version": triton,
        "shared_bytes": 98360,
        "registers": 242,
        "spill_bytes": 0,
        "loop_spills": 0,
    }
    return Compilation(**{**fields, **found})


def sweep(problem: AttentionShape) -> list[Trial]:
    """Every valid config screened, and a race of the fastest with the default; larger tiles are faster."""
    configs = list(IMPLEMENTATION.space.configs(problem, NVIDIA_H200))
    default = IMPLEMENTATION.space.default(problem, NVIDIA_H200)

    def row(number: int, chosen: Config, stage: Stage, race_id: str) -> Trial:
        return trial(
            problem,
            chosen,
            number=number,
            stage=stage,
            race_id=race_id,
            started_at=START + timedelta(seconds=number),
            timing=timing(_recorded_us(chosen)),
            default_timing=timing(_recorded_us(default)),
            is_default=chosen == default,
        )

    screened = [row(number, chosen, Stage.SCREEN, "") for number, chosen in enumerate(configs)]
    finalists: Iterable[Config] = dict.fromkeys([*sorted(configs, key=_recorded_us)[:4], default])
    raced = [row(len(configs) + number, chosen, Stage.RACE, "race-1") for number, chosen in enumerate(finalists)]
    return [*screened, *raced]


def _recorded_us(chosen: Config) -> float:
    order, best = (IMPLEMENTATION.space.order(each) for each in (chosen, FAST))
    distance = [abs(index - other) for index, other in zip(order, best, strict=True)]
    return 200.0 * (1.0 + 0.06 * sum(distance))


def hide_gpu(patch: pytest.MonkeyPatch) -> None:
    """From here on there is no GPU in this process, and no child is started for one where a driver is loaded."""
    patch.setattr(platforms, "has_gpu", lambda: False)
    patch.setattr(platforms, "has_driver", lambda: False)


def serve_from(patch: pytest.MonkeyPatch, home: Path, results: Path) -> None:
    """Take the user's tables from ``home`` and the shipped ones from ``results``."""
    patch.setenv("AUTOTUNE_HOME", str(home))
    tables = (shipped_winners, shipped_sweeps, shipped_grid, shipped_outsiders, all_roots)
    for read in (*tables, shipped_portfolios, shipped_compilations):
        patch.setitem(cast(dict[str, Any], read.__kwdefaults__), "results", results)


def serve_untuned(patch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Be on an H200 without tables until the generator goes on, where kernels are picked and checked."""
    serve_from(patch, folder / "home", folder / "results")
    patch.setattr(platforms, "current_device", lambda index=0: NVIDIA_H200)
    dispatch.reload()
    yield
    dispatch.reload()
