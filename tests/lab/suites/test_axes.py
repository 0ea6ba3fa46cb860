"""The suite over the article's axes: a cache of keys and values, quantization, score functions."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from autotune.kernels.baselines.flex import Flex
from autotune.kernels.baselines.int8_linear import ProjectedAttention, projected_attention
from autotune.kernels.baselines.kv_cache import GrowingCache
from autotune.kernels.flash_attention.flex import compiled
from autotune.kernels.flash_attention.reference import attention_reference
from autotune.lab.bench.machines import CpuMachine, GpuMachine, Machine
from autotune.lab.suites import axes
from autotune.lab.suites.axes import kv_cache, quantization, score_functions
from autotune.lab.suites.threads import THREADS
from autotune.sheets import Sheet
from tests.lab.bench.fake_machine import FakeMachine

SIZE = (2, 7, 16)


def column(table: Sheet, title: str) -> list[Any]:
    place = table.names.index(title)
    return [row[place] for row in table.rows]


def test_the_grids_are_the_articles() -> None:
    assert kv_cache.KV_GRID == ((4, 16), (8, 32), (10, 64), (12, 128))
    assert score_functions.FLEX_GRID == ((8, 8, 64), (16, 16, 128), (32, 32, 256))
    runs = inspect.signature(score_functions.flex_sheet).parameters["runs"].default
    assert (kv_cache.RUNS, runs, THREADS) == (100, 100, (1, 2))


def test_decoding_with_a_cache_gives_what_recomputing_gives() -> None:
    machine = FakeMachine()
    table = kv_cache.kv_sheet(machine, ((5, 16), (1, 8)))
    assert {rounds for _, rounds in machine.raced} == {100}
    assert table.failures == ()
    assert column(table, "threads") == [1, 2, 1, 2]
    assert column(table, "gain") == [0.5] * 4  # the fake machine's second call takes twice as long
    assert column(table, "gain of static") == [pytest.approx(1 / 3)] * 4
    assert all(0.0 < error < 1e-5 for error in column(table, "error"))
    calls = kv_cache.kv_calls(5, 16, "cpu")
    first, second = ([call() for call in calls.values()] for _ in range(2))  # a cache is empty again after a run
    for out in (*first, *second):
        assert out.shape == (1, 5, 4, 4)
        torch.testing.assert_close(out, first[0])


def test_a_cache_that_forgets_fails_the_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    append = GrowingCache.append

    def forget_and_append(self: GrowingCache, k: torch.Tensor, v: torch.Tensor) -> None:
        self.reset()
        append(self, k, v)

    monkeypatch.setattr(GrowingCache, "append", forget_and_append)
    table = kv_cache.kv_sheet(FakeMachine(), ((5, 16),))
    (failure,) = table.failures
    assert failure.startswith("sequence 5, hidden 16: growing cache: largest error")
    assert column(table, "growing cache") == column(table, "gain") == [None, None]  # what is wrong has no time
    assert column(table, "gain of static") == [0.5, 0.5]


def test_a_wrong_recomputation_fails_the_axis_and_leaves_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kv_cache._recompute
    monkeypatch.setattr(kv_cache, "_recompute", lambda states, weights: right(states, weights) * 1.001)
    table = kv_cache.kv_sheet(FakeMachine(), ((5, 16),))
    assert [failure.split(": ")[1] for failure in table.failures] == ["recomputed"]
    assert column(table, "recomputed") == column(table, "gain") == column(table, "gain of static") == [None, None]
    assert None not in column(table, "static cache")


def test_on_a_gpu_threads_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kv_cache.kv_calls
    exact = kv_cache._exact
    monkeypatch.setattr(kv_cache, "kv_calls", lambda sequence, hidden, device: right(sequence, hidden, "cpu"))
    monkeypatch.setattr(
        kv_cache, "_exact", lambda sequence, hidden, device, *dtype: exact(sequence, hidden, "cpu", *dtype)
    )
    assert column(kv_cache.kv_sheet(FakeMachine(kind="cuda"), ((3, 16),)), "threads") == [None]


def test_quantization_saves_three_quarters_of_the_weights_and_says_its_error() -> None:
    table = quantization.quantization_sheet(FakeMachine(), ((6, 64),))
    assert column(table, "threads") == [1, 2]
    weights, biases = 4 * 64 * 64, 4 * 64 * 4
    assert column(table, "float32 weights") == [4 * weights + biases] * 2
    assert column(table, "int8 weights") == [weights + 4 * 64 * 4 + biases] * 2  # and a scale for each output
    assert all(0.0 < error < 0.03 for error in column(table, "relative error"))
    assert column(table, "gain") == [0.5, 0.5]


def break_projection(module: ProjectedAttention) -> None:
    module.v_proj.get_buffer("scale").mul_(1.05)


def break_attention(module: ProjectedAttention) -> None:
    module.causal = True


@pytest.mark.parametrize(
    ("name", "breaks", "fault"),
    [
        ("int8", break_projection, "v_proj: largest error"),
        ("int8", break_attention, "attention: largest error"),
        ("float32", break_attention, "largest error"),
    ],
)
def test_a_wrong_quantized_or_float_module_is_a_failure_and_has_no_time(
    monkeypatch: pytest.MonkeyPatch, name: str, breaks: Callable[[ProjectedAttention], None], fault: str
) -> None:
    def make(hidden: int, heads: int, *, quantized: bool) -> ProjectedAttention:
        module = projected_attention(hidden, heads, quantized=quantized)
        if quantized == (name == "int8"):
            breaks(module)
        return module

    monkeypatch.setattr(quantization, "projected_attention", make)
    table = quantization.quantization_sheet(FakeMachine(), ((6, 64),))
    (failure,) = table.failures
    assert failure.startswith(f"sequence 6, hidden 64: {name}: {fault}")
    assert column(table, name) == column(table, "gain") == [None, None]
    (other,) = {"float32", "int8"} - {name}
    assert None not in column(table, other)


@pytest.mark.parametrize("size", kv_cache.KV_GRID)
def test_both_modules_are_right_at_the_articles_sizes(size: tuple[int, int]) -> None:
    assert quantization.faults(*quantization._modules(*size)) == {}


@pytest.mark.parametrize("name", ["no-op", "softcap", "causal mask", "sliding window"])
def test_the_reference_of_a_function_is_that_of_attention(name: str) -> None:
    tensors = score_functions.make_tensors(*SIZE, "cpu")
    options = {
        "softcap": {"softcap": score_functions.CAP},
        "causal mask": {"causal": True},
        "sliding window": {"window": score_functions.WINDOW},
    }.get(name, {})
    expected, _ = attention_reference(*tensors, **options)  # type: ignore[arg-type]
    exact, limit = score_functions.reference(tensors, score_functions.functions(7, "cpu")[name])
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact, expected, rtol=0.0, atol=1e-12)
    assert 0.0 < limit < 1e-4


def test_alibi_is_a_slope_times_the_distance() -> None:
    tensors = score_functions.make_tensors(1, 3, 8, "cpu")
    exact, _ = score_functions.reference(tensors, score_functions.functions(3, "cpu")["ALiBi"])
    q, k, v = (tensor[0, :, 1].double() for tensor in tensors)  # the second of four heads: 2^-4
    scores = torch.tensor([[float(q[i] @ k[j]) * 2**-0.5 + (j - i) / 16 for j in range(3)] for i in range(3)])
    torch.testing.assert_close(exact[0, :, 1], (torch.softmax(scores.double(), 1) @ v), rtol=0.0, atol=1e-6)


def test_a_document_is_attended_to_by_itself() -> None:
    tensors = score_functions.make_tensors(*SIZE, "cpu")
    exact, _ = score_functions.reference(tensors, score_functions.functions(7, "cpu")["document mask"])
    for tokens in (slice(0, 5), slice(5, 7)):
        alone, _ = attention_reference(*(tensor[:, tokens] for tensor in tensors))
        torch.testing.assert_close(exact[:, tokens], alone, rtol=0.0, atol=1e-12)


def test_every_function_changes_what_the_no_op_gives_at_every_size() -> None:
    for _, sequence, hidden in score_functions.FLEX_GRID:
        tensors, known = (
            score_functions.make_tensors(2, sequence, hidden, "cpu"),
            score_functions.functions(sequence, "cpu"),
        )
        outs = [score_functions.reference(tensors, function)[0] for function in known.values()]
        for place, out in enumerate(outs):
            assert all(not torch.allclose(out, other, atol=1e-3) for other in outs[:place])


def given(off_by: float = 0.0) -> Callable[..., dict[str, Callable[[], torch.Tensor]]]:
    """Calls that give each function's reference."""

    def calls(*size: Any, **_: Any) -> dict[str, Callable[[], torch.Tensor]]:
        tensors, known = score_functions.make_tensors(*SIZE, "cpu"), score_functions.functions(7, "cpu")
        names = size[4] if len(size) > 4 else tuple(known)
        return {name: lambda name=name: score_functions.reference(tensors, known[name])[0] + off_by for name in names}  # type: ignore[misc]

    return calls


@pytest.mark.parametrize("missing", [None, "g++ is not found"])
def test_score_functions_are_set_beside_the_no_op(monkeypatch: pytest.MonkeyPatch, missing: str | None) -> None:
    monkeypatch.setattr(Flex, "available", lambda self: missing)
    monkeypatch.setattr(score_functions, "flex_calls", given())
    monkeypatch.setattr(score_functions, "compiled_calls", given())
    monkeypatch.setattr(score_functions, "COMPILED_ON_CPU", {SIZE: ("no-op", "ALiBi")})
    table = score_functions.flex_sheet(FakeMachine(), (SIZE,))
    assert table.failures == ()
    names = ["no-op", "ALiBi", "softcap", "causal mask", "sliding window", "document mask"]
    compiled = [] if missing else ["no-op", "ALiBi"]
    assert column(table, "function") == [*names, *names, *compiled, *compiled]
    assert column(table, "times no-op")[:4] == [1.0, 2.0, 3.0, 4.0]
    assert [row[:3] for row in table.rows] == [SIZE] * len(table.rows)
    assert ("not compiled: g++ is not found" in table.notes) == (missing is not None)


def test_a_wrong_score_function_is_a_failure_and_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flex, "available", lambda self: "no compiler")
    monkeypatch.setattr(score_functions, "flex_calls", given(off_by=0.01))
    table = score_functions.flex_sheet(FakeMachine(), (SIZE,))
    assert table.rows == ()
    assert len(table.failures) == 6
    assert table.failures[0].startswith("(2, 7, 16), no-op: largest error 0.01")


def test_what_does_not_compile_is_a_failure_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_attention(*tensors: object, mask_mod: object, gradients: bool, **_: object) -> Any:
        assert gradients
        if mask_mod is not None:
            raise RuntimeError("no\nmasks")
        return SimpleNamespace(bind=lambda *tensors: lambda: None)

    monkeypatch.setattr(compiled, "compile_attention", compile_attention)
    failures: list[str] = []
    calls = score_functions.compiled_calls(*SIZE, "cpu", ("no-op", "causal mask"), gradients=True, failures=failures)
    assert list(calls) == ["no-op"]
    assert failures == ["(2, 7, 16), causal mask: RuntimeError: no masks"]


@pytest.mark.slow
def test_flex_attention_itself_is_right_where_it_is_not_compiled() -> None:
    table = score_functions.flex_sheet(FakeMachine(), (SIZE,))
    assert table.failures == ()
    assert len(table.rows) == 12


def test_operators_are_told_by_their_own_time() -> None:
    left = torch.ones(64, 64)
    calls = {"product": lambda: left @ left, "sum": lambda: left.sum()}
    table = axes.operator_sheet(CpuMachine(), "two calls", calls)
    product = [row for row in table.rows if row[0] == "product"]
    assert "aten::mm" in [row[1] for row in product]
    times = [row[3] for row in product]
    assert times == sorted(times, reverse=True)
    assert "aten::sum" in [row[1] for row in table.rows if row[0] == "sum"]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_operators_have_any_name_and_the_profilers_own_rows_are_none(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As torch 2.11 on an H200 listed a compiled FlexAttention; a kernel stands there once more, as the device's."""

    def row(key: str, *, device: str = "CPU", time: float = 0.0, memory: int = 0) -> SimpleNamespace:
        times = {f"self_{where}_time_total": time for where in ("cpu", "device")}
        sizes = {f"self_{where}_memory_usage": memory for where in ("cpu", "device")}
        return SimpleNamespace(key=key, count=1, device_type=SimpleNamespace(name=device), **times, **sizes)

    graph = "## Call CompiledFxGraph f3hmgl6hr5cmdrdaqozrese5qaqk4e5bfgw4zhdam7eijomrpj2n ##"
    listed = [
        row("triton_poi_fused_zeros_2", time=1.2),
        row("triton_tem_fused_flex_attention_4", time=113.6),
        row("aten::empty", memory=6144),
        row("aten::view"),
        row("Activity Buffer Request", time=2.0),
        row("[memory]", memory=-1048576),
        row("ProfilerStep*", time=500.0),
        row(graph, memory=1048576),
        row("Torch-Compiled Region: 0/0", time=300.0),
    ]
    if kind == "cuda":
        listed.append(row("triton_tem_fused_flex_attention_4", device="CUDA", time=113.6))
    profiler = MagicMock()
    profiler.__enter__.return_value.key_averages.return_value = listed
    monkeypatch.setattr(torch.profiler, "profile", lambda **_: profiler)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    machine: Machine = CpuMachine() if kind == "cpu" else GpuMachine()
    table = axes.operator_sheet(machine, "flex", {"no-op": lambda: None})
    found = ["triton_tem_fused_flex_attention_4", "triton_poi_fused_zeros_2", "aten::empty"]
    assert column(table, "operator") == found + [graph] * (kind == "cpu")  # where its kernels have no rows
    assert table.failures == ()


def test_a_call_without_an_operator_fails_the_table() -> None:
    left = torch.ones(4, 4)
    table = axes.operator_sheet(CpuMachine(), "two", {"product": lambda: left @ left, "nothing": lambda: None})
    assert table.failures == ("nothing: the profiler saw no operator of it",)
