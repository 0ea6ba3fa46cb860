"""FlexAttention as a baseline: its numbers against fp64, what torch is given, and what it refuses.

On the CPU dynamo traces each call as ever, and torch's own code computes it uncompiled: a compilation takes seconds.
Compiled it runs in one slow test, and on a GPU.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import flex_attention as library
from triton.runtime.errors import OutOfResources

from autotune.errors import BaselineUnavailableError, MissingDependencyError
from autotune.kernels.baselines.flex import Flex
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.kernels.flash_attention.flex import compiled
from autotune.operation import Baseline
from autotune.shape import AttentionShape, PagedShape
from tests.kernels.baselines.flex_cases import MODS, SHAPES, mod_failure, shape_failure, shape_of

quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it loads inductor
by_shape = pytest.mark.parametrize(
    "fields", SHAPES.values(), ids=[name.replace(", ", "-").replace(" ", "-") for name in SHAPES]
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is compiled yet, and pytest's workers take the cores."""
    compiled._compiled.cache_clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    compiled._compiled.cache_clear()


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> CompileCounter:
    """A counter of torch's compiles; it runs what dynamo traced, and compiles nothing."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    return counter


@by_shape
def test_agrees_with_fp64(counter: CompileCounter, fields: dict[str, Any]) -> None:
    assert shape_failure(shape_of(fields, "float16"), "cpu") is None
    assert counter.frame_count == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_dtypes_agree_with_fp64(counter: CompileCounter, dtype: str) -> None:
    assert shape_failure(shape_of(SHAPES["all"], dtype), "cpu") is None


@pytest.mark.parametrize("mod", MODS)
def test_score_functions_and_masks_agree_with_fp64(counter: CompileCounter, mod: str) -> None:
    assert mod_failure(mod, torch.float32, "cpu") is None


OPTIONS: tuple[dict[str, int], ...] = (
    {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2},
    {"BLOCK_M": 256, "num_warps": 8},
)


@pytest.mark.slow
@quiet
@pytest.mark.parametrize("options", [{}, *OPTIONS], ids=str)
def test_compiled_on_the_cpu_agrees_with_fp64(options: dict[str, int]) -> None:
    assert shape_failure(shape_of(SHAPES["causal, more queries"], "float32"), "cpu", options) is None


@pytest.mark.gpu
@quiet
@by_shape
def test_gpu_agrees_with_fp64(fields: dict[str, Any]) -> None:
    assert shape_failure(shape_of(fields, "bfloat16"), "cuda") is None


@pytest.mark.gpu
@quiet
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gpu_other_dtypes_agree_with_fp64(dtype: str) -> None:
    assert shape_failure(shape_of(SHAPES["all"], dtype), "cuda") is None


@pytest.mark.gpu
@quiet
@pytest.mark.parametrize("mod", MODS)
def test_gpu_score_functions_and_masks_agree_with_fp64(mod: str) -> None:
    assert mod_failure(mod, torch.bfloat16, "cuda") is None


@pytest.mark.gpu
@quiet
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gpu_takes_kernel_options(options: dict[str, int]) -> None:
    fields = {"seq_q": 300, "seq_kv": 500, "causal": True, "kv_heads": 2}
    assert shape_failure(shape_of(fields, "bfloat16"), "cuda", options) is None


@pytest.mark.gpu
@quiet
def test_gpu_refuses_tiles_that_do_not_fit() -> None:
    shape = shape_of({"seq_q": 1024, "head_dim": 256}, "float32")
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cuda")
    with pytest.raises(OutOfResources):
        compiled.attend(inputs, {"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 4})


def test_each_shape_of_a_process_is_compiled_and_stays_so(counter: CompileCounter) -> None:
    """More shapes than torch keeps of one code object; none is compiled again when the first is called."""
    calls = []
    with torch._dynamo.config.patch(recompile_limit=2):  # 8 by default
        for length in (16, 17, 18):
            shape = AttentionShape(batch=1, heads=1, seq_q=length, head_dim=16, dtype="float32", causal=True)
            calls.append(Flex().prepare(shape, DEFINITION.make_inputs(shape, seed=0, device="cpu")))
    assert counter.frame_count == 3
    for call in calls:
        call()
    assert counter.frame_count == 3


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The keyword arguments of each call of flex_attention, which computes nothing."""
    found: list[dict[str, Any]] = []

    def record(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        from torch._inductor import config

        state = {"falls_back": config.triton.dynamic_disable_pipelining, "grad": torch.is_grad_enabled()}
        found.append({"sizes": [tuple(tensor.shape) for tensor in (q, k, v)], **state, **options})
        return q

    def run_as_it_is(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        assert options == {"dynamic": False, "fullgraph": True}
        return function

    monkeypatch.setattr(library, "flex_attention", record)
    monkeypatch.setattr(torch, "compile", run_as_it_is)
    return found


@quiet
@pytest.mark.parametrize("options", [{}, OPTIONS[0]], ids=str)
def test_only_options_that_were_chosen_must_be_compiled_as_they_are(
    given: list[dict[str, Any]], options: dict[str, int]
) -> None:
    """Where torch's own choice does not fit, a user's call runs with one stage, and so does the baseline."""
    shape = shape_of({"seq_q": 16, "kv_heads": 1, "heads": 16, "causal": True}, "float32")  # torch is given BLOCK_M
    compiled.bind(DEFINITION.make_inputs(shape, seed=0, device="cpu"), options)
    assert given[0]["kernel_options"] == {"BLOCK_M": 128, **options}
    assert given[0]["falls_back"] == (not options)


@quiet
def test_a_timed_call_is_torchs_own(given: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    call = Flex().prepare(PLAIN, DEFINITION.make_inputs(PLAIN, seed=0, device="cpu"))

    def look_up(*_: object) -> None:
        raise AssertionError("looked up again")

    monkeypatch.setattr(compiled, "_compiled", look_up)
    monkeypatch.setattr(compiled, "Layout", look_up)
    monkeypatch.setattr(torch, "no_grad", look_up)
    assert call().shape == (2, 8, 4, 64)
    assert [each["grad"] for each in given] == [False, False]  # it would store the log-sum-exp
    assert torch.is_grad_enabled()


@quiet
@pytest.mark.parametrize("gradients", [False, True])
def test_gradients_are_kept_where_they_are_asked_for(given: list[dict[str, Any]], gradients: bool) -> None:
    q = torch.randn(1, 8, 2, 16)
    compiled.compile_attention(q, q, q, scale=0.25, gradients=gradients).bind(q, q, q)()
    assert [each["grad"] for each in given] == [gradients, gradients]


@quiet
@pytest.mark.parametrize(
    ("options", "blocks"),
    [({}, (128, 128)), (OPTIONS[0], (128, 128)), (OPTIONS[1], (256, 128)), ({"BLOCK_N": 256}, (128, 256))],
    ids=str,
)
def test_options_reach_torch_and_divide_the_blocks_of_the_mask(
    given: list[dict[str, Any]], options: dict[str, int], blocks: tuple[int, int]
) -> None:
    shape = shape_of({"seq_q": 300, "seq_kv": 500, "causal": True, "kv_heads": 2}, "float32")
    call = compiled.bind(DEFINITION.make_inputs(shape, seed=0, device="cpu"), options)
    assert len(given) == 1  # what torch does at a first call is done
    assert call().shape == (2, 300, 4, 64)
    assert given[1]["sizes"] == [(2, 4, 300, 64), (2, 2, 500, 64), (2, 2, 500, 64)]
    assert given[1]["kernel_options"] == (options or None)
    mask = given[1]["block_mask"]
    assert (mask.BLOCK_SIZE, mask.shape) == (blocks, (1, 1, 300, 500))
    assert given[1]["enable_gqa"] is True
    assert given[1]["scale"] == shape.head_dim**-0.5


@quiet
@pytest.mark.parametrize(
    ("fields", "is_masked"),
    [
        ({"seq_q": 1, "seq_kv": 9, "causal": True}, False),
        ({"seq_q": 2, "seq_kv": 9, "causal": True}, True),
        ({"seq_q": 9, "window": 9}, False),
        ({"seq_q": 9, "window": 8}, True),
        ({"seq_q": 20, "seq_kv": 9, "window": 19}, True),
        ({"seq_q": 9}, False),
    ],
)
def test_only_what_hides_keys_is_a_block_mask(
    given: list[dict[str, Any]], fields: dict[str, Any], is_masked: bool
) -> None:
    shape = shape_of(fields, "float32")
    Flex().prepare(shape, DEFINITION.make_inputs(shape, seed=0, device="cpu"))
    assert (given[0]["block_mask"] is not None) == is_masked
    assert given[0]["score_mod"] is None
    assert given[0]["enable_gqa"] is False


PLAIN = shape_of({"seq_q": 8}, "float16")


def test_it_is_a_baseline() -> None:
    baseline: Baseline = Flex()
    assert baseline.name == "flex"
    for fields in SHAPES.values():
        assert baseline.unsupported(shape_of(fields, "bfloat16")) is None


def test_what_it_cannot_do_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flex, "available", lambda self: None)
    fp8 = shape_of({"seq_q": 8}, "float16")
    object.__setattr__(fp8, "dtype", "float8_e4m3fn")
    paged = PagedShape(batch=1, heads=2, max_context=64, head_dim=64)
    for shape, reason in ((fp8, "dtype=float8_e4m3fn: "), (paged, "PagedShape: ")):
        found = Flex().unsupported(shape)
        assert found is not None
        assert found.startswith(reason)
        with pytest.raises(BaselineUnavailableError) as caught:
            Flex().prepare(shape, None)
        assert str(caught.value) == found


def test_what_torch_cannot_compile_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("out of resource:\n shared memory")

    monkeypatch.setattr(Flex, "available", lambda self: None)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fail))
    with pytest.raises(BaselineUnavailableError, match=r"^flex does not run here: .*memory") as caught:
        Flex().prepare(PLAIN, DEFINITION.make_inputs(PLAIN, seed=0, device="cpu"))
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_missing_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install 'torch>=2.5'" in (Flex().available() or "")
    with pytest.raises(MissingDependencyError, match=r"pip install 'torch>=2\.5'"):
        Flex().prepare(PLAIN, None)


def test_a_torch_without_flex_attention_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.nn.attention, "flex_attention")
    monkeypatch.setitem(sys.modules, library.__name__, None)
    assert "flex needs torch 2.5 or newer" in (Flex().available() or "")


def test_what_is_missing_on_a_cpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setenv("CXX", sys.executable)
    assert Flex().available() is None
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "compiled by no-such-compiler, which is not found: install g++" in (Flex().available() or "")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert "AVX2, which this processor lacks (DEFAULT)" in (Flex().available() or "")


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch, has_gpu: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert Flex().available() is None
    monkeypatch.setitem(sys.modules, "triton", None)
    assert 'pip install ".[gpu]"' in (Flex().available() or "")


def test_import_loads_no_torch() -> None:
    code = "import sys, autotune.kernels.baselines.flex; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)
