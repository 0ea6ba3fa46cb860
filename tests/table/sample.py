"""A tiny operation with two implementations, its trials, and strategies that draw any trial a table may hold."""

import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from autotune.device import NVIDIA_H200, Device
from autotune.implementation import Implementation
from autotune.operation import Cost, Operation
from autotune.registry import register, register_implementation
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space
from autotune.trial import Candidate, Conditions, Outcome, Policy, Resources, Stage, Status, Timing, Toolchain, Trial

NAME = "table_sample"
MI300X = Device(name="AMD Instinct MI300X", arch="gfx942", sm_count=304, memory_mib=196592)
CAPPED_H200 = Device(name="NVIDIA H200", arch="sm_90", sm_count=132, memory_mib=143771, power_cap_watts=500)
SHAPE = AttentionShape(batch=2, heads=8, kv_heads=2, seq_q=1024, head_dim=64, causal=True)
START = datetime(2026, 11, 21, 6, tzinfo=UTC)

PARAMETERS = (
    Parameter("BLOCK", (16, 32, 64)),
    Parameter("num_warps", (2, 4, 8)),
    Parameter("loads", ("pointer", "descriptor")),
    Parameter("kpack", (1, 2), needs="wave_hints"),
)


def _default(shape: AttentionShape, device: Device) -> Config:
    return Config(BLOCK=32, num_warps=4, loads="pointer", kpack=1 if device.has("wave_hints") else None)


OPERATION = Operation(
    name=NAME,
    shape_class=AttentionShape,
    cost=lambda shape: Cost(flops=1, bytes=1),
    definition=f"{__name__}:NO_DEFINITION",
)
IMPLEMENTATION = Implementation(
    name="triton",
    operation=NAME,
    space=Space(PARAMETERS, lambda config, shape, device: None, _default),
    kernel=f"{__name__}:NO_KERNEL",
    sources=(Path(__file__),),
    entry=("_default",),
)
FOREIGN: Implementation[AttentionShape] = Implementation(
    name="foreign",
    operation=NAME,
    space=Space((Parameter("TILE", (1, 2, 3)),), lambda config, shape, device: None, lambda *_: Config(TILE=1)),
    kernel=f"{__name__}:NO_KERNEL",
    library="torch",
)
register(NAME, f"{__name__}:OPERATION")
for _name in ("triton", "foreign"):
    register_implementation(NAME, _name, f"{__name__}:{'IMPLEMENTATION' if _name == 'triton' else 'FOREIGN'}")


def config(block: int = 32, warps: int = 4, loads: str = "pointer", kpack: int | None = None) -> Config:
    return Config(BLOCK=block, num_warps=warps, loads=loads, kpack=kpack)


def timing(median: float = 100.0, spread: float = 2.0) -> Timing:
    return Timing(median_us=median, low_us=median - spread, high_us=median + spread, samples=20)


def trial(number: int = 0, **changes: Any) -> Trial:
    """A raced trial; fields of the outcome and of its candidate may be given beside the trial's own."""
    candidate = Candidate(changes.pop("implementation", "triton"), changes.pop("config", config()))
    outcome: dict[str, Any] = {"candidate": candidate, "status": Status.OK, "timing": timing()}
    fields: dict[str, Any] = {
        "operation": NAME,
        "source_hash": "ab" * 32,
        "shape": SHAPE,
        "device": NVIDIA_H200,
        "toolchain": Toolchain("0.1.0", triton="3.6.0"),
        "executor": "gpu",
        "policy": Policy(),
        "study": "study",
        "seed": 0,
        "number": number,
        "worker": "host:1",
        "started_at": START + timedelta(seconds=number),
        "stage": Stage.RACE,
        "race_id": "race-1",
    }
    for name, value in changes.items():
        (outcome if name in Outcome.__dataclass_fields__ else fields)[name] = value
    return Trial(**fields, outcome=Outcome(**outcome))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COUNTS = st.integers(0, 2**63 - 1)
AMOUNTS = st.floats(0, allow_nan=False, allow_infinity=False)
DURATIONS = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)
TIMINGS = st.builds(
    lambda times, samples: Timing(times[1], times[0], times[2], samples),
    st.lists(DURATIONS, min_size=3, max_size=3).map(sorted),
    st.integers(1, 2**63 - 1),
)
# Fixed offsets: where summer time ends, Python calls a moment and the same moment in UTC unequal.
ZONES = st.integers(-12, 14).map(lambda hours: timezone(timedelta(hours=hours)))
DEVICES = st.builds(
    Device,
    name=TEXTS.map(lambda text: f"GPU {text}"),
    arch=st.sampled_from(["sm_90", "sm_120", "gfx942", "sm_999"]),
    sm_count=st.integers(1, 2**63 - 1),
    memory_mib=st.integers(1, 2**63 - 1),
    power_cap_watts=st.none() | COUNTS,
)
SHAPES = st.builds(
    lambda kv_heads, group, **fields: AttentionShape(heads=kv_heads * group, kv_heads=kv_heads, **fields),
    kv_heads=st.integers(1, 64),
    group=st.integers(1, 8),
    batch=st.integers(1, 2**31 - 1),
    seq_q=st.integers(1, 2**31 - 1),
    seq_kv=st.integers(1, 2**31 - 1),
    head_dim=st.sampled_from(range(8, 257, 8)),
    head_dim_v=st.sampled_from(range(8, 257, 8)),
    dtype=st.sampled_from(["float16", "bfloat16", "float32"]),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 2**31 - 1),
    softcap=st.booleans(),
)


def configs(device: Device) -> st.SearchStrategy[Config]:
    choices = {parameter.name: parameter.choices(device) for parameter in PARAMETERS}
    return st.fixed_dictionaries({name: st.sampled_from(values) for name, values in choices.items()}).map(Config)


@st.composite
def outcomes(draw: st.DrawFn, device: Device) -> Outcome:
    status = draw(st.sampled_from(Status))
    limit = draw(st.none() | AMOUNTS)
    if status is Status.OK:
        error = draw(st.none() | st.floats(0, math.inf if limit is None else limit, allow_infinity=False))
    else:
        error = draw(st.none() | st.floats(0, allow_nan=False))
    return Outcome(
        candidate=Candidate("triton", draw(configs(device))),
        status=status,
        message=draw(TEXTS),
        timing=draw(TIMINGS if status is Status.OK else st.none() | TIMINGS),
        error=error,
        error_limit=limit,
        resources=draw(st.builds(Resources, *[st.none() | COUNTS] * 3)),
        compile_seconds=draw(st.none() | AMOUNTS),
        judge_seconds=draw(st.none() | AMOUNTS),
        conditions=draw(st.builds(Conditions, *[st.none() | COUNTS] * 3, TEXTS, st.booleans())),
    )


@st.composite
def trials(draw: st.DrawFn, devices: st.SearchStrategy[Device] = DEVICES) -> Trial:
    device = draw(devices)
    baseline_timing = draw(st.none() | TIMINGS)
    return Trial(
        operation=NAME,
        source_hash=draw(TEXTS.filter(bool)),
        shape=draw(SHAPES),
        device=device,
        toolchain=draw(st.builds(Toolchain, *[TEXTS] * 6)),
        executor=draw(st.sampled_from(["gpu", "replay"])),
        policy=draw(st.builds(Policy, st.sampled_from(["graph", "eager"]), st.sampled_from(["cold", "warm"]))),
        study=draw(TEXTS),
        seed=draw(COUNTS),
        number=draw(COUNTS),
        worker=draw(TEXTS),
        started_at=draw(st.datetimes(datetime(1970, 1, 2), datetime(2026, 11, 20), timezones=ZONES)),
        stage=draw(st.sampled_from(Stage)),
        race_id=draw(TEXTS),
        is_default=draw(st.booleans()),
        outcome=draw(outcomes(device)),
        default_timing=draw(st.none() | TIMINGS),
        default_config=draw(st.none() | configs(device)),
        heuristic_timing=draw(st.none() | TIMINGS),
        served_timing=draw(st.none() | TIMINGS),
        served_rung=draw(st.sampled_from([None, "exact", "nearest", "same model", "default"])),
        is_served=draw(st.none() | st.booleans()),
        expected_regret=draw(st.none() | AMOUNTS),
        evidence=draw(st.none() | COUNTS),
        baseline=draw(TEXTS if baseline_timing is None else TEXTS.filter(bool)),
        baseline_timing=baseline_timing,
        tflops=draw(st.none() | AMOUNTS),
        gbps=draw(st.none() | AMOUNTS),
    )
