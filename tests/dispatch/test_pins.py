"""Pinned configs, by an argument or by the environment, and tables that are switched off."""

from dataclasses import replace
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import device_by_name, events, get_kernel, pick_for_device, reload, stats
from autotune.dispatch import kernel as kernel_module
from autotune.dispatch.pins import read_switches
from autotune.errors import InvalidConfigError, InvalidShapeError, NoTunedKernelError, UnknownNameError, UsageError
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION as DECODE
from autotune.space import Config
from autotune.table import read_misses
from autotune.trial import Candidate
from tests import sample
from tests.dispatch.tables import H200, PAGED, SLOWER, Tables, default_of

SHAPE: Final = sample.shape()
WHOLE: Final = "BLOCK_Q=64,BLOCK_K=64,num_warps=4,num_stages=3,loads=pointer"
PINNED: Final = Config({**sample.FAST, **Config.parse(WHOLE)})


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("AUTOTUNE_CONFIG", "AUTOTUNE_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_whole_config_is_served_in_place_of_the_winner(tables: Tables) -> None:
    tables.ship(sample.trial())
    kernel = get_kernel(SHAPE, config=PINNED)
    assert kernel.candidate == Candidate("triton", PINNED)
    why = kernel.provenance
    assert (why.rung, why.row, why.distance, why.origin) == ("pinned", None, None, "")
    assert why.reason == f"named by config={dict(PINNED)!r}"
    assert get_kernel(SHAPE).provenance.rung == "exact"  # of that call alone
    assert get_kernel(SHAPE, config=dict(PINNED)) is kernel


def test_what_a_pin_leaves_open_is_as_served_otherwise(tables: Tables) -> None:
    tables.ship(sample.trial())
    kernel = get_kernel(SHAPE, config={"BLOCK_K": 64})
    assert kernel.config == sample.config(BLOCK_K=64)
    assert kernel.provenance.reason == (
        "named by config={'BLOCK_K': 64}; BLOCK_Q, num_warps, num_stages, loads as exact: "
        "tuned for this shape on NVIDIA H200"
    )
    missed = sample.shape(batch=1)
    kernel = get_kernel(missed, config={"BLOCK_K": 64})
    assert kernel.config == Config({**default_of(missed), "BLOCK_K": 64})
    assert "as default: no tuned shape of flash_attention/triton" in kernel.provenance.reason


def test_parameters_follow_a_pinned_one_that_decides_which_of_them_exist(tables: Tables) -> None:
    shape = replace(PAGED, batch=1, max_context=8192, mean_context=8192)
    assert get_kernel(shape, device=H200).config["schedule"] == "split"
    kernel = get_kernel(shape, device=H200, config={"schedule": "flat", "PROGRAMS_PER_SM": 2})
    assert (kernel.config["PROGRAMS_PER_SM"], kernel.config["NUM_SPLITS"]) == (2, None)
    assert DECODE.space.why_invalid(kernel.config, shape, NVIDIA_H200) is None
    with pytest.raises(InvalidConfigError, match=r"PROGRAMS_PER_SM is missing beside schedule=flat, .*; allowed: 1, 2"):
        get_kernel(shape, device=H200, config={"schedule": "flat"})


def test_an_implementation_alone_pins_what_is_served_of_it(tables: Tables) -> None:
    tables.ship(sample.trial())
    kernel = get_kernel(SHAPE, implementation="triton")
    why, served = kernel.provenance, get_kernel(SHAPE).provenance
    assert why == replace(served, cause=f"named by implementation='triton': {served.cause}")
    assert why.reason == f"named by implementation='triton': {served.reason}"
    assert (kernel.config, why.rung, why.distance, len(kernel.alternatives)) == (sample.FAST, "exact", 0.0, 1)
    assert why.row is not None
    with pytest.raises(NoTunedKernelError, match="named by implementation='triton': no tuned shape of"):
        get_kernel(sample.shape(batch=1), implementation="triton", on_miss="error")
    assert get_kernel(SHAPE, implementation="flex").implementation == "flex"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"config": {"BLOCK_K": 48}},
            r"^config=\{'BLOCK_K': 48\}: BLOCK_K=48 is not allowed beside BLOCK_Q=\d+ on NVI",
        ),
        (
            {"config": {"BLOCK_M": 64}},
            r"BLOCK_M is no parameter; allowed: those of flash_attention/triton: BLOCK_Q, BL",
        ),
        ({"config": {"kpack": 2}}, "kpack=2 is not allowed .* on NVIDIA H200; allowed: None$"),
        ({"config": {"BLOCK_Q": 256, "BLOCK_K": 256, "num_stages": 4}}, "is invalid for batch 16, .* on NVIDIA H200: "),
        ({"config": {"BLOCK_K": 64.0}}, "has BLOCK_K=64.0; expected an integer, a string or None"),
        ({"config": {"BLOCK_K": True}}, "has BLOCK_K=True; expected an integer, a string or None"),
    ],
)
def test_a_wrong_config_is_refused(tables: Tables, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        get_kernel(SHAPE, **given)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"config": "BLOCK_K=64"}, UsageError, "config='BLOCK_K=64' is of type str; expected a Config, or a dict"),
        ({"implementation": 3}, UsageError, "implementation=3 is no name"),
        ({"implementation": "gluon"}, UnknownNameError, "implementation='gluon' of flash_attention is unknown"),
        ({"config": {}, "among": ("flex",)}, UsageError, r"config=\{\} and among=\('flex',\) exclude each other"),
    ],
)
def test_wrong_arguments_are_refused(
    tables: Tables, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        get_kernel(SHAPE, **given)


def test_a_pinned_config_gives_way_to_nothing(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    class RefusalError(Exception):
        pass

    RefusalError.__module__ = "triton.runtime.errors"

    class Kernel:
        def bind(self, config: Config, shape: object) -> Any:
            def call() -> None:
                raise RefusalError(config)

            return call

    tables.ship(sample.trial())
    monkeypatch.setattr(kernel_module, "load_kernel", lambda operation, implementation: Kernel())
    with pytest.raises(RefusalError):
        get_kernel(SHAPE, config=PINNED)()


def test_the_environment_pins_for_functions_too(tables: Tables, environment: pytest.MonkeyPatch) -> None:
    tables.ship(sample.trial())
    get_kernel(SHAPE)
    environment.setenv("AUTOTUNE_CONFIG", f" flash_attention/triton: {WHOLE} ; paged_decode/triton:num_warps=2;")
    assert get_kernel(SHAPE, among="fastest").config == sample.FAST  # read by the first pick, and after reload()
    reload()
    kernel = pick_for_device(SHAPE, 0, "flash_attention")
    assert (kernel.config, kernel.provenance.rung) == (PINNED, "pinned")
    assert kernel.provenance.reason == f"named by AUTOTUNE_CONFIG='flash_attention/triton: {WHOLE}'"
    assert get_kernel(SHAPE).config == PINNED
    assert get_kernel(SHAPE, config=SLOWER).config == SLOWER  # an argument is nearer
    assert get_kernel(SHAPE, among=("flex",)).provenance.rung == "default"
    assert get_kernel(PAGED, device=H200).config["num_warps"] == 2
    assert get_kernel(PAGED, device=H200).provenance.rung == "pinned"


def test_the_environment_may_pin_a_foreign_implementation(tables: Tables, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AUTOTUNE_CONFIG", "flash_attention/flex")
    reload()
    assert pick_for_device(SHAPE, 0, "flash_attention").implementation == "flex"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("BLOCK_Q=64", "^AUTOTUNE_CONFIG='BLOCK_Q=64' is not allowed; expected OPERATION/IMPLEMENTATION:NAME=VALUE"),
        ("flash_attention:BLOCK_Q=64", "is not allowed; expected OPERATION/IMPLEMENTATION"),
        ("conv/triton", "^AUTOTUNE_CONFIG='conv/triton': operation='conv' is unknown; registered: "),
        (
            "flash_attention/gluon",
            "='gluon' of flash_attention is unknown; registered: triton, gluon_hopper, gluon_hopper_fp8, ",
        ),
        ("flash_attention/triton:BLOCK_Q", "^AUTOTUNE_CONFIG='flash_attention/triton:BLOCK_Q': config='BLOCK_Q' has"),
        ("flash_attention/triton;flash_attention/flex", "pins flash_attention twice; expected each operation once"),
        ("flash_attention/triton:BLOCK_Q=65", "^AUTOTUNE_CONFIG='flash_attention/triton:BLOCK_Q=65': BLOCK_Q=65 is no"),
    ],
)
def test_a_wrong_variable_is_named(tables: Tables, environment: pytest.MonkeyPatch, value: str, message: str) -> None:
    environment.setenv("AUTOTUNE_CONFIG", value)
    reload()
    for _ in range(2):
        with pytest.raises(UsageError, match=message):
            get_kernel(SHAPE)


def test_a_shape_that_a_pinned_implementation_cannot_compute_is_refused(
    tables: Tables, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("AUTOTUNE_CONFIG", "paged_decode/triton")
    reload()
    with pytest.raises(InvalidShapeError, match=r"^AUTOTUNE_CONFIG='paged_decode/triton': .*float8_e4m3fn"):
        get_kernel(replace(PAGED, kv_dtype="fp8"), device="NVIDIA A100-SXM4-80GB")


def test_tables_that_are_switched_off_answer_nothing(tables: Tables, environment: pytest.MonkeyPatch) -> None:
    environment.setattr(events, "_counts", events._Counts())
    tables.ship(sample.trial())
    environment.setenv("AUTOTUNE_DISABLE", "1")
    reload()
    kernel = get_kernel(SHAPE)
    assert (kernel.config, kernel.provenance.rung) == (default_of(SHAPE), "default")
    assert kernel.provenance.reason == "AUTOTUNE_DISABLE=1 switches the tables off: the space's default"
    get_kernel(SHAPE, on_miss="record")
    assert read_misses() == []
    assert (stats().picks, stats().misses) == ({"default": 1}, ())
    with pytest.raises(NoTunedKernelError, match="AUTOTUNE_DISABLE=1 switches the tables off; shape"):
        get_kernel(SHAPE, on_miss="error")
    environment.setenv("AUTOTUNE_DISABLE", "0")
    reload()
    assert get_kernel(SHAPE).provenance.rung == "exact"


def test_tables_that_are_switched_off_are_not_read(tables: Tables, environment: pytest.MonkeyPatch) -> None:
    other = replace(NVIDIA_H200, name="NVIDIA H200 of mine")
    tables.tune(sample.trial(device=other))
    for damaged in (tables.home, tables.results):
        for path in damaged.rglob("*.parquet"):
            path.write_bytes(b"no table")
    environment.setattr("autotune.table.stored_winners", None)
    environment.setattr("autotune.table.shipped_portfolios", None)
    environment.setenv("AUTOTUNE_DISABLE", "1")
    reload()
    for device in (None, H200, "A100", "sm_80"):
        reason = get_kernel(SHAPE, device=device).provenance.reason
        assert reason == "AUTOTUNE_DISABLE=1 switches the tables off: the space's default"
    with pytest.warns(RuntimeWarning, match="AUTOTUNE_DISABLE=1 switches the tables off, and no list knows the device"):
        get_kernel(SHAPE, device=other.name)
    assert device_by_name("A100") is not None
    assert device_by_name(other.name) is None


def test_another_value_of_the_switch_is_refused() -> None:
    with pytest.raises(UsageError, match=r"AUTOTUNE_DISABLE='yes' is not allowed; expected 1, .* or 0"):
        read_switches({"AUTOTUNE_DISABLE": "yes"})
