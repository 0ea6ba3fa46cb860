"""Shape options at the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune import dispatch
from autotune.console.shape_options import ShapeOptions
from autotune.console.shapes import describe_model
from autotune.search_spaces.paged_decode.operation import OPERATION as PAGED_DECODE
from autotune.shape import Shape
from autotune.tuning_command import tuning_command
from tests import sample
from tests.cli.conftest import Machine, Ran
from tests.console.test_shapes import DECODE, paged_of, prefill, shape_of, shapes_of

__all__ = ["prefill"]  # a fixture

Run = Callable[..., Ran]


def test_a_window_of_some_layers_is_left_out_and_said(run: Run, machine: Machine) -> None:
    shape = shape_of(model="gemma-2-9b")
    assert (shape.window, shape.softcap) == (None, True)
    machine.ship(sample.trial())
    assert "only some layers" not in run("lookup", "--model", "gemma-2-9b", "--seq", "4096").out  # it hides nothing
    ran = run("lookup", "--model", "gemma-2-9b", "--seq", "8192")
    first = ran.out.splitlines()[0]
    assert first.startswith("only some layers of gemma-2-9b have its window of 4096 keys")
    assert "--window 4096" in first
    as_json = run("lookup", "--model", "gemma-2-9b", "--seq", "8192", "--json")
    assert as_json.err.splitlines()[0] == first
    assert json.loads(as_json.out)[0]["shape"]["window"] is None
    named = run("lookup", "--model", "gemma-2-9b", "--seq", "8192", "--window", "4096").out
    assert "only some layers" not in named
    assert "window 4096, softcap" in named


def test_an_operation_of_ones_own_takes_the_options_of_its_shape_class(run: Run, prefill: str) -> None:
    assert shapes_of(operation=prefill, context="512") == [paged_of(context="512")]
    ran = run("lookup", "--context", "512")
    assert (ran.code, ran.out) == (2, "")
    assert "--context is for --operation paged_decode or " in ran.err
    assert f" or {prefill}\n" in ran.err


def test_the_help_says_what_is_usual_and_what_ragged_means(run: Run) -> None:
    text = " ".join(run("lookup", "--help").out.split())
    assert "paged: 64, of a prefill 8]" in text
    assert "[default: 1; of a prefill 2048, at most --context]" in text
    assert "of a prefill a mixed batch: one new token each, but the last sequence has all others" in text
    assert "A batch of 1 stays as it is" in text
    assert "[default: the GPU here, or NVIDIA H200]" in text
    assert "[default: all]" in run("show", "--help").out


def test_what_only_one_phase_of_a_model_refuses_is_said_before_any_other_word(run: Run, machine: Machine) -> None:
    ran = run("search", "--model", "llama-3.1-8b", "--queries", "512")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "autotune: --queries=512 is not supported by paged_decode; expected 1 to 8; "
        "it is for the decode of llama-3.1-8b alone, --operation names another\n"
    )


def test_options_of_either_phase_are_taken_with_a_model(run: Run, machine: Machine) -> None:
    problems, _ = describe_model(ShapeOptions(model="phi-4", causal=False, page_size=64, batch="2"))
    dense, paged = (shape.as_dict() for _, shape in problems)
    assert (dense["causal"], dense["batch"], paged["page_size"], paged["batch"]) == (False, 2, 64, 2)
    ran = run("lookup", "--model", "phi-4", "--context", "512")  # one operation a call
    assert (ran.code, "context='512' is not for flash_attention" in ran.err) == (2, True)


def test_lookup_of_a_cache_answers_the_default_and_says_why(run: Run, machine: Machine) -> None:
    machine.ship(sample.trial())
    for device in ("NVIDIA H200", None):
        named = () if device is None else ("--device", device)
        ran = run("lookup", "--operation", "paged_decode", "--context", "8192", *named)
        assert (ran.code, ran.err) == (0, "")
        assumed = "" if named else "no GPU here: an NVIDIA H200 is assumed; --device names another\n"
        assert ran.out.startswith(f"{assumed}shape   {DECODE}\ndevice  NVIDIA H200\nkernel  triton\nconfig  schedule=")
        why = "no tuned shape of paged_decode/triton on NVIDIA H200 (sm_90): the space's default"
        assert f"\nwhy     default: {why}, as no recording of triton on sm_90 ships\n" in ran.out
        assert ran.out.endswith(
            f"\nnext    `{tuning_command('paged_decode', DECODE)}` on an NVIDIA H200 finds the best and records it; "
            "from then on that is served there\n"
        )


def test_what_is_served_is_asked_of_the_operation_that_was_named(
    run: Run, machine: Machine, prefill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    get_kernel = dispatch.get_kernel

    def note(shape: Shape, *, operation: str | None, **options: Any) -> Any:
        asked.append(operation)
        return get_kernel(shape, operation=operation, **options)

    monkeypatch.setattr("autotune.cli.lookup.get_kernel", note)
    assert run("lookup", "--operation", "paged_decode").code == 0
    assert asked == [PAGED_DECODE.name]


def test_explain_knows_configs_of_a_cache(run: Run, machine: Machine, tmp_path: Path) -> None:
    (found,) = json.loads(run("lookup", "--operation", "paged_decode", "--json").out)
    config = json.dumps(found["config"])
    ran = run("explain", config, "--operation", "paged_decode", "--device", "NVIDIA H200")
    assert (ran.code, ran.err) == (0, "")
    assert f"shape     {DECODE}\n" in ran.out
    assert "verdict   never tried at this shape: it is valid" in ran.out
