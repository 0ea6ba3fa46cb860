"""Rows of FlexAttention as a recording under one torch would have left them: winners of what ships, and a sweep."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from autotune import implementation
from autotune.device import NVIDIA_H200
from autotune.roofline import rates
from autotune.search_spaces.flash_attention.flex import IMPLEMENTATION
from autotune.search_spaces.flash_attention.operation import cost
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import write_shipped
from autotune.trial import Resources, Stage, Status, Trial
from tests import sample

TOOLCHAIN: Final = replace(sample.TOOLCHAIN, torch="2.11.0+cu130")
SOURCE: Final = hashlib.sha256(b"torch 2.11.0").hexdigest()
FIELDS: Final = ("batch", "heads", "kv_heads", "head_dim", "seq_q", "causal", "window", "softcap")
PROBLEMS: Final[tuple[tuple[Any, ...], ...]] = (
    (16, 32, 8, 128, 1024, True, None, False),
    (4, 32, 8, 128, 4096, True, None, False),
    (4, 16, 16, 128, 4096, False, None, False),
    (8, 32, 32, 64, 2048, True, None, False),
    (8, 8, 8, 256, 2048, True, None, False),
    (2, 32, 8, 128, 8192, True, 1024, False),
    (1, 16, 8, 256, 4096, True, None, True),
    (32, 12, 12, 64, 512, False, None, False),
)
SHAPES: Final = tuple(AttentionShape(**dict(zip(FIELDS, sizes, strict=True))) for sizes in PROBLEMS)
# 128 valid configs: 64 sizes, with and without descriptors; of a window and a softcap torch can be told nothing else.
SMALL: Final = AttentionShape(batch=1, heads=2, seq_q=128, head_dim=256, causal=True, window=64, softcap=True)
SLOW_STAGES: Final = {1: 1.3, 2: 1.0, 3: 1.02, 4: 1.04, 5: 1.06}
TOO_LARGE: Final = "out of resource: shared memory, Required: 278528, Hardware limit: 232448"


def install(patch: pytest.MonkeyPatch, version: str) -> None:
    """Another torch, as far as hashes know."""
    patch.setattr(implementation, "installed_version", lambda library: version)


def default(shape: AttentionShape) -> Config:
    return IMPLEMENTATION.space.default(shape, NVIDIA_H200)


def tuned(shape: AttentionShape) -> Config:
    """A valid config that is not the default: the default with one stage less."""
    return Config({**default(shape), "num_stages": default(shape).integer("num_stages") - 1})


def trial(shape: AttentionShape, chosen: Config | None = None, **changes: Any) -> Trial:
    """The winner of a race, or a screened row; what it takes of the device is not known of what torch compiles."""
    chosen = chosen or tuned(shape)
    timing = changes.get("timing", sample.timing(1000.0))
    tflops, gbps = (None, None) if timing is None else rates(cost(shape), timing.median_us)
    fields: dict[str, Any] = {
        "source_hash": SOURCE,
        "toolchain": TOOLCHAIN,
        "timing": timing,
        "default_timing": sample.timing(1250.0),
        "baseline_timing": sample.timing(500.0),
        "resources": Resources(),
        "compile_seconds": 0.0,
        "judge_seconds": 5.0,
        "tflops": tflops,
        "gbps": gbps,
        "is_default": chosen == default(shape),
    }
    return sample.trial(shape, chosen, "flex", **{**fields, **changes})


def winners() -> list[Trial]:
    """One of each problem whose winner ships, 1.25 times as fast as the default."""
    return [trial(shape, race_id=f"race-{number}", number=number) for number, shape in enumerate(SHAPES)]


def sweep(shape: AttentionShape = SMALL) -> list[Trial]:
    """Every valid config screened, and a race of the fastest three with the default.

    The time is 100 us with the largest BLOCK_M, a tenth more for each halving, and little more or less by the stages;
    the others change nothing. With five stages of 32 keys a config does not fit.
    """
    configs = list(IMPLEMENTATION.space.configs(shape, NVIDIA_H200))
    screened = [_screened(shape, number, chosen) for number, chosen in enumerate(configs)]
    fastest = sorted((t for t in screened if t.status is Status.OK), key=lambda t: microseconds(t.config))[:3]
    finalists: Iterable[Config] = dict.fromkeys([*(t.config for t in fastest), default(shape)])
    raced = [
        trial(
            shape,
            chosen,
            number=len(configs) + number,
            started_at=sample.START + timedelta(seconds=len(configs) + number),
            timing=sample.timing(microseconds(chosen)),
            default_timing=sample.timing(microseconds(default(shape))),
        )
        for number, chosen in enumerate(finalists)
    ]
    return [*screened, *raced]


def microseconds(chosen: Config) -> float:
    halvings = (128 // chosen.integer("BLOCK_M")).bit_length() - 1
    return 100.0 * (1.0 + 0.1 * halvings) * SLOW_STAGES[chosen.integer("num_stages")]


def ship(results: Path, rows: Iterable[Trial]) -> None:
    """Write the shipped winners of the H200."""
    write_shipped(Path("nvidia_h200/flash_attention/flex.parquet"), rows, results=results)


def ship_sweep(results: Path, shape: AttentionShape = SMALL) -> list[Trial]:
    """Write a recorded sweep of the H200."""
    rows = sweep(shape)
    write_shipped(Path("nvidia_h200/flash_attention/sweeps/flex_small.parquet"), rows, results=results)
    return rows


def _screened(shape: AttentionShape, number: int, chosen: Config) -> Trial:
    fails = (chosen["num_stages"], chosen["BLOCK_N"]) == (5, 32)
    outcome = {"status": Status.OUT_OF_RESOURCES, "message": TOO_LARGE, "error": None} if fails else {}
    return trial(
        shape,
        chosen,
        number=number,
        stage=Stage.SCREEN,
        race_id="",
        started_at=sample.START + timedelta(seconds=number),
        timing=None if fails else sample.timing(microseconds(chosen)),
        default_timing=None,
        baseline="",
        baseline_timing=None,
        **outcome,
    )
