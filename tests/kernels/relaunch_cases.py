"""Calls made again over ``stub_cuda``, by the function of each test: ``python -m tests.kernels.relaunch_cases``.

Prints one line of JSON: the traceback of each case, or null.
"""

import gc
import itertools
import json
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest import mock

import pytest
import torch
from triton import knobs
from triton.runtime.jit import JITFunction

import autotune
from autotune import eager_calls, platforms
from autotune.device import NVIDIA_H200
from autotune.dispatch import pick_for_device, reload, seal, stats, unseal
from autotune.dispatch.events import watch_compiles
from autotune.dispatch.pins import CONFIG
from autotune.errors import InputMismatchError, NotDifferentiableError, SealedError
from autotune.kernels import known_calls, relaunch
from autotune.kernels.flash_attention.triton_split_keys import launch as shares_launch
from autotune.kernels.paged_decode.triton import launch as decode_launch
from tests.kernels.repeat_problems import (
    DENSE,
    HALF,
    PAGED,
    SPLIT,
    SQUARE,
    Problem,
    attend,
    decode_with,
    draw_dense,
    draw_padded,
    draw_paged,
    draw_shifted,
    prefill_with,
    problems,
)
from tests.kernels.stub_cuda import StubCuda, read_parameters

STUB: Final = StubCuda()
CASES: Final[dict[str, Callable[[], None]]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


KEPT: Final[list[Any]] = []  # until a case ends, so that no address is used twice


def tensors_of(problem: Problem) -> dict[str, torch.Tensor]:
    """Draw tensors at addresses of their own."""
    KEPT.append(drawn := problem.draw())
    return drawn


def learn(problem: Problem) -> None:
    """Let the stub log all launches of such calls."""
    with relaunch.recording() as launches:
        problem.checked(tensors_of(problem))
    for launch in launches:
        STUB.learn(launch.binary)


def launches_of(function: Callable[[], Any], tensors: dict[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    """Make a call, and describe what it launched; its result is kept, so that no address is used twice."""
    STUB.read()
    KEPT.append(function())
    return read_parameters(STUB.read(), tensors)


def launches(problem: Problem, tensors: dict[str, torch.Tensor], **options: Any) -> list[tuple[Any, ...]]:
    return launches_of(lambda: problem.call(**tensors, **problem.options | options), tensors | _tensors(options))


def ordinary(problem: Problem, tensors: dict[str, torch.Tensor], **options: Any) -> list[tuple[Any, ...]]:
    return launches_of(lambda: problem.checked(tensors, **options), tensors | _tensors(options))


def _tensors(options: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in options.items() if isinstance(value, torch.Tensor)}


@contextmanager
def no_ordinary_launch() -> Iterator[None]:
    """Fail where a launch goes through its ``JITFunction``."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("an ordinary launch")

    with mock.patch.object(JITFunction, "run", refuse), mock.patch.object(relaunch, "_RUN", JITFunction.run):
        yield


@case
def test_the_gpu_gets_what_an_ordinary_launch_passes() -> None:
    for number, problem in enumerate(problems()):
        learn(problem)
        problem.call(**tensors_of(problem), **problem.options)
        tensors = tensors_of(problem)
        expected = ordinary(problem, tensors)
        assert expected, number
        with no_ordinary_launch():
            assert launches(problem, tensors) == expected, f"problem {number}"


@case
def test_results_are_laid_out_alike() -> None:
    for number, problem in enumerate(problems()):
        tensors = tensors_of(problem)
        first, again = (problem.call(**tensors, **problem.options) for _ in range(2))
        for one, other in zip(_all(first), _all(again), strict=True):
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype), number


def _all(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@case
def test_an_output_does_not_take_strides_of_queries() -> None:
    problem = attend(SQUARE)
    tensors = draw_dense(SQUARE)
    tensors["q"] = tensors["q"].permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)
    assert not tensors["q"].is_contiguous()
    for _ in range(2):
        assert problem.call(**tensors).is_contiguous()


@case
def test_what_launches_depend_on_makes_another_signature() -> None:
    problem = attend(loads="descriptor")
    base, padded, shifted = tensors_of(problem), draw_padded(), draw_shifted()
    problem.call(**base)
    for changed in ({"k": padded["k"]}, {"v": shifted["v"]}, {"q": padded["q"], "v": padded["v"]}):
        tensors, count = base | changed, len(problem.call._calls)
        with relaunch.recording() as launched:
            problem.checked(tensors)
        STUB.learn(launched[0].binary)
        expected = ordinary(problem, tensors)
        for _ in range(2):
            assert launches(problem, tensors) == expected
        assert len(problem.call._calls) == count + 1


@case
def test_options_make_another_signature() -> None:
    problem = attend()
    tensors = tensors_of(problem)
    learn(problem)
    for options in ({}, {"scale": 0.5}, {"scale": 1.0}, {"scale": 1}, {"return_lse": True}):
        expected = ordinary(problem, tensors, **options)
        for _ in range(2):
            assert launches(problem, tensors, **options) == expected, options
    assert len(problem.call._calls) == 5


@case
def test_what_is_refused_is_refused_beside_a_known_call() -> None:
    problem = attend()
    tensors = tensors_of(problem)
    for options in ({}, {"scale": 1.0}, {"return_lse": True}):
        for _ in range(2):
            problem.call(**tensors, **options)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"scale": True}, "scale=True is not allowed"),
        ({"scale": float("nan")}, "scale=nan is not allowed"),
        ({"scale": [1.0]}, "scale=a list is not allowed"),
        ({"softcap": 1.0}, "softcap=1.0; this kernel was picked without one"),
        ({"q": tensors["q"].float()}, "q is .* float32"),
        ({"q": tensors["q"].tolist()}, "q is a list"),
        ({"k": tensors["k"].to("meta")}, "q is on cpu, k on meta"),
        ({"v": tensors["v"].mT.contiguous().mT}, "v has the strides"),
        ({"causal": True}, "causal is no option of the call"),
        ({"out": tensors["q"]}, r"out is \(2, 20, 4, 16\) float16; expected"),
    ]
    for (changed, message), _ in itertools.product(bad, range(2)):
        with pytest.raises(InputMismatchError, match=message):
            problem.call(**tensors | changed)
    with torch.no_grad():
        problem.call(**tensors | {"q": tensors["q"].clone().requires_grad_()})
    for _ in range(2):
        changed = tensors | {"q": tensors["q"].clone().requires_grad_()}
        with pytest.raises(NotDifferentiableError, match="q requires gradients"):
            problem.call(**changed)


@case
def test_parameters_without_gradients_are_repeated() -> None:
    problem = attend()
    tensors = tensors_of(problem)
    tensors["k"] = torch.nn.Parameter(tensors["k"])
    with torch.no_grad():
        problem.call(**tensors)
        with no_ordinary_launch():
            problem.call(**tensors)
    with pytest.raises(NotDifferentiableError, match="k requires gradients"):
        problem.call(**tensors)


@case
def test_one_tensor_in_two_places_is_not_taken_for_two() -> None:
    problem = attend(replace(SQUARE, seq_q=40, kv_heads=4))
    learn(problem)
    x, y, z = (torch.zeros(2, 40, 4, 16, dtype=HALF) for _ in range(3))
    problem.call(x, x, x)
    with no_ordinary_launch():
        found = launches_of(lambda: problem.call(x, y, z), {"q": x, "k": y, "v": z})
    assert found == ordinary(problem, {"q": x, "k": y, "v": z})


@case
def test_a_buffer_is_written_and_must_be_apart() -> None:
    for problem in (attend(), decode_with(SPLIT), prefill_with()):
        learn(problem)
        tensors = tensors_of(problem)
        like = problem.call(**tensors)
        first, second = (torch.zeros_like(like) for _ in range(2))
        assert problem.call(**tensors, out=first) is first
        version = second._version
        expected = ordinary(problem, tensors, out=second)
        with no_ordinary_launch():
            assert launches(problem, tensors, out=second) == expected
            assert problem.call(**tensors, out=second) is second
        assert second._version == version + 3
        cache = next(name for name in tensors if name.startswith("v"))
        room = torch.zeros(1 << 16, dtype=HALF)
        inside = room[: tensors[cache].numel()].view(tensors[cache].shape)
        shared = room[16 : 16 + like.numel()].view(like.shape)
        with pytest.raises(InputMismatchError, match=f"out shares memory with {cache}"):
            problem.call(**tensors | {cache: inside}, out=shared)


@case
def test_hooks_and_other_runs_see_ordinary_launches() -> None:
    problem = attend()
    learn(problem)
    tensors = tensors_of(problem)
    problem.call(**tensors)
    expected = launches(problem, tensors)
    seen: list[str] = []

    def hook(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    for chain in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook):
        chain.add(hook)
        assert launches(problem, tensors) == expected
        chain.remove(hook)
    assert seen == ["flash_attention_forward"] * 2
    with mock.patch.object(knobs.runtime, "launch_enter_hook", hook):  # as Triton before 3.5 had them
        problem.call(**tensors)
    assert len(seen) == 3
    ordinary_run = JITFunction.run
    counted = mock.Mock(side_effect=lambda function, *given, **named: ordinary_run(function, *given, **named))
    with mock.patch.object(JITFunction, "run", lambda *given, **named: counted(*given, **named)):
        assert launches(problem, tensors) == expected
    assert counted.call_count == 1
    with no_ordinary_launch():
        assert launches(problem, tensors) == expected


@case
def test_a_launch_is_on_the_current_stream_and_the_gpu_of_the_tensors() -> None:
    problem = decode_with(SPLIT)
    learn(problem)
    tensors = tensors_of(problem)
    problem.call(**tensors)
    STUB.stream = 77
    try:
        found = launches(problem, tensors)
    finally:
        STUB.stream = 4242
    assert [head[5] for head, *_ in found] == [77, 77]
    entered = []

    @contextmanager
    def device(index: int | None) -> Iterator[None]:
        entered.append(index)
        yield

    with mock.patch.object(known_calls, "current_device", return_value=5), mock.patch("torch.cuda.device", device):
        assert len(launches(problem, tensors)) == 2
    assert entered == [None]  # the index of a tensor on the CPU


@case
def test_descriptors_are_encoded_once_an_address_and_few_are_kept() -> None:
    problem = attend()
    learn(problem)
    encoded = mock.Mock(side_effect=relaunch.Descriptors._encode, autospec=True)
    tensors = tensors_of(problem)
    problem.call(**tensors)
    with mock.patch.object(relaunch.Descriptors, "_encode", lambda *given: encoded(*given)):
        for _ in range(3):
            problem.call(**tensors)
        assert encoded.call_count == 1
        for _ in range(relaunch.ENCODED + 5):
            problem.call(**tensors | {"k": tensors_of(problem)["k"]})
        assert encoded.call_count == 1 + relaunch.ENCODED + 5
    (repeat,) = problem.call._calls._repeats.values()
    assert 0 < len(repeat._descriptors._encoded) <= relaunch.ENCODED
    assert [like.base for like in repeat._descriptors._likes] == [None] * 3
    assert launches(problem, tensors) == ordinary(problem, tensors)


@case
def test_few_calls_are_kept_and_no_tensor() -> None:
    problem = prefill_with()
    tensors = tensors_of(problem)
    with mock.patch.object(known_calls, "KEPT", 3):
        for count in range(1, 8):
            for _ in range(2):
                problem.call(**tensors | {"q": torch.zeros(count, PAGED.heads, PAGED.head_dim, dtype=HALF)})
    assert len(problem.call._calls) == 1
    problem, tensors = decode_with(SPLIT), draw_paged()
    problem.call(**tensors)
    problem.call(**tensors)
    references = [weakref.ref(each) for each in tensors.values()]
    del tensors
    gc.collect()
    assert not [each for each in references if each() is not None]
    assert len(problem.call._calls) == 1


@case
def test_what_has_to_be_read_or_traced_is_not_repeated() -> None:
    problem = decode_with(SPLIT)
    tensors = tensors_of(problem)
    problem.call(**tensors)
    wrong = tensors | {"seq_lens": torch.full((3,), 999, dtype=torch.int32)}
    problem.call(**wrong)
    with pytest.raises(InputMismatchError, match=r"seq_lens\[0\]=999"):
        problem.call(**wrong, check=True)
    with mock.patch("torch.compiler.is_compiling", return_value=True):
        assert not relaunch.is_direct()
    with mock.patch.object(relaunch, "IS_KNOWN", False):
        assert not relaunch.is_direct()


@case
def test_nothing_compiles_after_the_seal() -> None:
    watch_compiles("autotune.kernels.flash_attention.triton")
    problem = attend(replace(DENSE, window=3))
    tensors = tensors_of(problem)
    problem.call(**tensors)
    compiles = stats().compiles
    shifted = draw_shifted()["v"]
    seal()
    try:
        for _ in range(2):
            problem.call(**tensors)
            with pytest.raises(SealedError, match="would compile after seal"):
                problem.call(**tensors | {"v": shifted})
    finally:
        unseal()
    assert stats().compiles == compiles


@case
def test_threads_meet_in_one_kernel() -> None:
    problem = decode_with(SPLIT)
    learn(problem)
    drawn = [tensors_of(problem) for _ in range(8)]
    expected = ordinary(problem, drawn[0])
    failures: list[BaseException] = []
    start = threading.Barrier(len(drawn))

    def work(tensors: dict[str, torch.Tensor]) -> None:
        try:
            start.wait()
            for _ in range(200):
                problem.call(**tensors)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(tensors,)) for tensors in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(problem.call._calls) == 1
    assert launches(problem, drawn[0]) == expected


@case
def test_pins_and_reload_change_what_is_repeated() -> None:
    q, k, v = draw_dense().values()
    with (
        mock.patch.object(eager_calls, "gpu_of", return_value=0),
        mock.patch.object(platforms, "current_device", return_value=NVIDIA_H200),
    ):
        for block in (16, 32):
            pin = f"flash_attention/triton:BLOCK_Q={block},BLOCK_K=16,num_warps=1,num_stages=1,loads=pointer"
            with mock.patch.dict(os.environ, {CONFIG: pin}):
                reload()
                autotune.attention(q, k, v, causal=True)
                with no_ordinary_launch():
                    autotune.attention(q, k, v, causal=True)
                kernel = pick_for_device(DENSE, 0, "flash_attention")
            assert kernel.config["BLOCK_Q"] == block
            bound: Any = next(iter(kernel._calls.values()))
            assert len(bound._calls) == 1
    reload()


def main() -> None:
    """Run all cases, or those that are named."""
    names = ("triton", "gluon_hopper", "triton_split_keys", "triton_split_width")
    dense = [f"flash_attention.{name}.kernel" for name in names]
    packed = "flash_attention_varlen.triton.kernel"  # of both implementations
    checked = [*dense, packed, "flash_attention.operand_kernel", "paged_cache.paged_kernel"]
    patches: dict[str, Callable[..., None]] = {
        **{f"autotune.kernels.{each}.check_device": lambda *given: None for each in checked},
        "autotune.kernels.known_calls.current_device": lambda: None,  # the index of tensors on the CPU
    }
    for name, value in patches.items():
        mock.patch(name, value).start()
    for name, answer in {"_is_nvidia": True, "_capability": 9, "_sm_count": 4}.items():  # dependent launches, too
        mock.patch.object(decode_launch, name, return_value=answer).start()
    mock.patch.object(shares_launch, "_has_dependent_launch", return_value=True).start()
    outcomes: dict[str, str | None] = {}
    for name in sys.argv[1:] or CASES:
        try:
            CASES[name]()
            outcomes[name] = None
        except (Exception, pytest.fail.Exception):
            outcomes[name] = traceback.format_exc()
        KEPT.clear()
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
