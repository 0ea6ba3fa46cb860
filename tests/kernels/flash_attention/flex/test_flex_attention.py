"""FlexAttention as a tunable kernel: its numbers against fp64, what torch is given and when it compiles, refusals.

On the CPU dynamo traces each call as ever, and torch's own code computes it uncompiled: a compilation takes seconds,
and has no use for the options. Compiled it runs in one slow test, and on a GPU.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import flex_attention as library
from triton.errors import TritonError
from triton.runtime.errors import OutOfResources

import autotune
from autotune import registry
from autotune.correctness import check_config, make_cases
from autotune.device import NVIDIA_H200
from autotune.errors import InputMismatchError, NotDifferentiableError, UsageError, is_toolchain_refusal
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.kernels.flash_attention.flex import KERNEL, compiled
from autotune.platforms import current_device
from autotune.search_spaces.flash_attention.flex import IMPLEMENTATION, MAX_CHECKED_PAIRS, check_shapes, kernel_options
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Status
from tests.kernels.baselines.flex_cases import SHAPES, shape_of
from tests.kernels.numerics import dense_attention

by_shape = pytest.mark.parametrize(
    "fields", SHAPES.values(), ids=[name.replace(", ", "-").replace(" ", "-") for name in SHAPES]
)
FLAGS = {"PRESCALE_QK": 0, "BLOCKS_ARE_CONTIGUOUS": 0, "USE_TMA": 0}
CONFIG = Config(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2, **FLAGS)
OPTIONS = kernel_options(CONFIG)
SMALL = shape_of({"seq_q": 40, "seq_kv": 60, "causal": True, "kv_heads": 2}, "float32")


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


def default(shape: AttentionShape) -> Config:
    return IMPLEMENTATION.space.default(shape, NVIDIA_H200)


def launch(config: Config, inputs: Any) -> torch.Tensor:
    (out, *_) = DEFINITION.empty_outputs(inputs)
    KERNEL.launch(config, inputs, (out,))
    return out


@pytest.mark.parametrize("name", ["full", "causal, more queries", "causal window", "all"])
def test_agrees_with_fp64_after_one_compile(counter: CompileCounter, name: str) -> None:
    shape = shape_of({**SHAPES[name], "batch": 1}, "float16")
    verdict = check_config(
        KERNEL, default(shape), make_cases(DEFINITION, check_shapes(shape), device="cpu"), every_output=True
    )
    assert (verdict.status, verdict.message) == (Status.OK, "")
    assert counter.frame_count == 1  # for normal, large and tails


def test_agrees_with_another_statement_of_attention(counter: CompileCounter) -> None:
    shape = shape_of(SHAPES["all"], "float32")
    inputs = DEFINITION.make_inputs(shape, seed=3, device="cpu")
    expected, _ = dense_attention(
        inputs.q, inputs.k, inputs.v, causal=True, window=9, softcap=inputs.softcap, scale=inputs.scale
    )
    assert torch.allclose(launch(default(shape), inputs).double(), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it loads inductor
def test_compiled_on_the_cpu_agrees_with_fp64() -> None:
    cases = make_cases(DEFINITION, check_shapes(SMALL), device="cpu")
    verdict = check_config(KERNEL, CONFIG, cases)  # torch's code for CPUs has no log-sum-exp
    assert (verdict.status, verdict.message) == (Status.OK, "")


def test_each_config_and_each_kind_of_inputs_compiles_once(counter: CompileCounter) -> None:
    sets = [DEFINITION.make_inputs(SMALL, seed=seed, device="cpu") for seed in range(3)]
    configs = [Config({**CONFIG, "num_stages": stages}) for stages in (1, 2)] * 2
    for number, config in enumerate(configs):
        for inputs in sets:
            launch(config, inputs)
            assert counter.frame_count == min(number + 1, 2)
    transposed = replace(sets[0], q=sets[0].q.transpose(1, 2).contiguous().transpose(1, 2))
    for inputs in (transposed, replace(sets[0], scale=0.3), replace(sets[0], window=9)):
        for _ in range(2):
            launch(CONFIG, inputs)
    assert counter.frame_count == 5
    with torch.no_grad():
        launch(CONFIG, sets[0])
    assert counter.frame_count == 5


def test_the_output_is_torchs_own_and_no_copy(counter: CompileCounter) -> None:
    inputs = DEFINITION.make_inputs(SMALL, seed=0, device="cpu")
    out = DEFINITION.empty_outputs(inputs)
    assert out[0].isnan().all()
    filled = [output.data_ptr() for output in out]
    KERNEL.launch(CONFIG, inputs, out)
    assert [tuple(output.shape) for output in out] == [(2, 40, 4, 64), (2, 4, 40)]
    assert all(output.data_ptr() != before for output, before in zip(out, filled, strict=True))
    assert not any(output.isnan().any() for output in out)


def test_a_torch_that_never_takes_another_pipeline_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor, "config", SimpleNamespace(triton=SimpleNamespace()))  # 2.11's, as far as read
    with compiled._no_other_pipeline():
        pass


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The keyword arguments of each call of flex_attention, which computes nothing; torch compiles nothing."""
    found: list[dict[str, Any]] = []

    def record(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        from torch._inductor import config

        falls_back = config.triton.dynamic_disable_pipelining
        sizes = [tuple(tensor.shape) for tensor in (q, k, v)]
        found.append({"sizes": sizes, "falls_back": falls_back, "grad": torch.is_grad_enabled(), **options})
        return q

    def run_as_it_is(function: Any, **options: Any) -> Any:
        assert options == {"dynamic": False, "fullgraph": True}
        return function

    monkeypatch.setattr(library, "flex_attention", record)
    monkeypatch.setattr(torch, "compile", run_as_it_is)
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_config_reaches_torch_whole(given: list[dict[str, Any]]) -> None:
    inputs = DEFINITION.make_inputs(SMALL, seed=0, device="cpu")
    assert launch(CONFIG, inputs).shape == (2, 40, 4, 64)
    (call,) = given
    assert call["kernel_options"] == OPTIONS
    assert call["sizes"] == [(2, 4, 40, 64), (2, 2, 60, 64), (2, 2, 60, 64)]
    mask = call["block_mask"]
    assert (mask.BLOCK_SIZE, mask.shape) == ((128, 128), (1, 1, 40, 60))
    assert (call["scale"], call["enable_gqa"], call["score_mod"]) == (0.125, True, None)
    assert not call["grad"]  # it would store the log-sum-exp
    assert not call["falls_back"]  # to one stage, without a word
    launch(CONFIG, inputs)
    assert given[1]["falls_back"]  # nothing compiles any more, and the setting is its user's again
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_log_sum_exp_is_of_queries_that_nothing_rounded(given: list[dict[str, Any]]) -> None:
    inputs = DEFINITION.make_inputs(SMALL, seed=0, device="cpu")
    options = {**OPTIONS, "PRESCALE_QK": True}
    for with_lse in (False, True):
        with suppress(AttributeError):  # the recorder's result has no log-sum-exp
            compiled.attend(inputs, options, with_lse=with_lse)
    assert [call["kernel_options"]["PRESCALE_QK"] for call in given] == [True, False]
    assert options["PRESCALE_QK"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_only_what_hides_keys_is_a_block_mask(given: list[dict[str, Any]]) -> None:
    for fields, is_masked in (({"causal": False}, False), ({"seq_q": 1}, False), ({"window": 70}, True), ({}, True)):
        launch(CONFIG, DEFINITION.make_inputs(replace(SMALL, **fields), seed=0, device="cpu"))
        assert (given[-1]["block_mask"] is not None) == is_masked, fields


class CompileError(TorchDynamoException):
    """As dynamo raises: of its module, with the compiler's words in its own."""


CompileError.__module__ = "torch._inductor.exc"

TOO_LARGE = (
    "RuntimeError: No valid triton configs. OutOfResources: out of resource: shared memory, Required: 278528, Hardware "
    "limit: 232448. Reducing block sizes or `num_stages` may help."
)
TOO_LARGE_TOO = (
    "RuntimeError: No valid triton configs. OutOfMemoryError: out of resource: triton_tem_fused_0 Required: 278528 "
    "Hardware limit:232448 Reducing block sizes or `num_stages` may help."
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (CompileError(TOO_LARGE), OutOfResources, "Required: 278528, Hardware limit: 232448"),
        (RuntimeError(TOO_LARGE), OutOfResources, "out of resource: shared memory"),
        (CompileError(TOO_LARGE_TOO), OutOfResources, "triton_tem_fused_0, Required: 278528, Hardware limit: 232448"),
        (
            CompileError("LoweringException: ValueError: Q and KV block size\nmust be"),
            TritonError,
            "block size must be",
        ),
        (torch.cuda.OutOfMemoryError("2 GiB"), torch.cuda.OutOfMemoryError, "2 GiB"),
        (RuntimeError("CUDA error: misaligned address"), RuntimeError, "misaligned"),
    ],
)
def test_what_torch_refuses_is_raised_as_triton_would(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], message: str
) -> None:
    calls: list[Exception | None] = [error, None]

    def refuse_once(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> torch.Tensor:
        if (raised := calls.pop(0)) is not None:
            raise raised
        return q

    monkeypatch.setattr(library, "flex_attention", refuse_once)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    inputs = DEFINITION.make_inputs(SMALL, seed=0, device="cpu")
    with pytest.raises(kind, match=message) as caught:
        launch(CONFIG, inputs)
    assert isinstance(caught.value, TritonError) == (kind in (OutOfResources, TritonError))
    if kind is not type(error):
        assert caught.value.__cause__ is error
        assert is_toolchain_refusal(caught.value)
    assert launch(CONFIG, inputs).shape == (2, 40, 4, 64)  # it is tried again


def test_a_config_is_checked_on_the_shape_itself_as_far_as_that_is_quick() -> None:
    usual = AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
    assert check_shapes(usual) == (usual,)
    longest = replace(usual, batch=1, heads=32, kv_heads=8, seq_q=16384, seq_kv=16384)
    assert check_shapes(longest) == (longest,)
    for shape in (replace(longest, seq_kv=16385), replace(usual, batch=1024, seq_q=128, seq_kv=128)):
        (checked,) = check_shapes(shape)
        assert checked == replace(shape, batch=1, heads=shape.group, kv_heads=1)
        assert checked.heads * checked.seq_q * checked.seq_kv <= MAX_CHECKED_PAIRS


def test_nothing_compiles_ahead() -> None:
    assert not IMPLEMENTATION.compiles_ahead
    with pytest.raises(UsageError, match="torch compiles FlexAttention where it is launched"):
        KERNEL.warmup(CONFIG, SMALL)


def test_it_is_what_get_kernel_hands_out_for_its_name(counter: CompileCounter) -> None:
    assert registry.load_kernel("flash_attention", "flex") is KERNEL
    shape = replace(SMALL, softcap=True)
    kernel = autotune.get_kernel(shape, device="NVIDIA H200", among=("flex",))
    q, k, v = torch.randn(2, 40, 4, 64), torch.randn(2, 60, 2, 64), torch.randn(2, 60, 2, 64)
    for scale, softcap in ((None, 5.0), (0.3, 5.0), (None, 2.0), (None, 5.0)):
        expected, _ = dense_attention(q, k, v, causal=True, window=None, softcap=softcap, scale=scale or 0.125)
        assert torch.allclose(kernel(q, k, v, scale=scale, softcap=softcap).double(), expected, atol=1e-5)
    assert counter.frame_count == 3
    out, lse = kernel(q, k, v, scale=0.3, softcap=2.0, return_lse=True)
    expected, expected_lse = dense_attention(q, k, v, causal=True, softcap=2.0, scale=0.3)
    assert torch.allclose(out.double(), expected, atol=1e-5)
    assert torch.allclose(lse.double(), expected_lse, atol=1e-5)


def test_a_call_refuses_what_does_not_fit() -> None:
    call = KERNEL.bind(CONFIG, SMALL)
    q, k, v = torch.randn(2, 40, 4, 64), torch.randn(2, 60, 2, 64), torch.randn(2, 60, 2, 64)
    for tensors, options, message in (
        ((q[:, 1:], k, v), {}, r"q is \(2, 39, 4, 64\) float32; this kernel takes \(2, 40, 4, 64\) float32"),
        ((q, k.half(), v), {}, "k is .* float16; this kernel takes"),
        ((q, k, [1]), {}, "v is a list"),
        ((q, k, v), {"softcap": 5.0}, "softcap=5.0; this kernel was picked without one"),
        ((q, k, v), {"scale": 0.0}, "scale=0.0 is not allowed"),
        ((q, k, v), {"dropout": 0.1}, "dropout is no option of this kernel; allowed: scale, softcap, return_lse"),
        ((q, k, v), {"causal": False}, "this kernel was picked for causal=True"),
    ):
        with pytest.raises(InputMismatchError, match=message):
            call(*tensors, **options)
    with pytest.raises(NotDifferentiableError, match="v requires gradients"):
        call(q, k, v.requires_grad_())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@by_shape
def test_gpu_agrees_with_fp64(fields: dict[str, Any]) -> None:
    shape = shape_of(fields, "bfloat16")
    config = IMPLEMENTATION.space.default(shape, current_device())
    verdict = check_config(
        KERNEL, config, make_cases(DEFINITION, check_shapes(shape), device="cuda"), every_output=True
    )
    assert (verdict.status, verdict.message) == (Status.OK, "")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("fields", [{"seq_q": 256}, {"seq_q": 9, "seq_kv": 300, "kv_heads": 1}], ids=["main", "decode"])
def test_gpu_takes_every_block_of_queries_and_keys_and_all_that_torch_is_told(fields: dict[str, Any]) -> None:
    shape = shape_of({"causal": True, **fields}, "bfloat16")
    cases, device, seen = make_cases(DEFINITION, check_shapes(shape), device="cuda"), current_device(), set()
    for config in IMPLEMENTATION.space.configs(shape, device):
        kind = config["BLOCK_M"], config["BLOCK_N"], *(config[name] for name in FLAGS)
        if kind not in seen:
            seen.add(kind)
            verdict = check_config(KERNEL, config, cases, every_output=True)
            assert (verdict.status, verdict.message) == (Status.OK, ""), config


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gpu_a_graph_holds_launches_over_several_inputs() -> None:
    shape = shape_of({"seq_q": 300, "causal": True}, "bfloat16")
    config = IMPLEMENTATION.space.default(shape, current_device())
    sets = [DEFINITION.make_inputs(shape, seed=seed, device="cuda") for seed in range(2)]
    outs = [DEFINITION.empty_outputs(inputs) for inputs in sets]
    KERNEL.launch(config, sets[0], outs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            for inputs, out in zip(sets, outs, strict=True):
                KERNEL.launch(config, inputs, out)
    for out in outs:
        out[0].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    for inputs, out in zip(sets, outs, strict=True):
        assert torch.equal(out[0], launch(config, inputs))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gpu_what_does_not_fit_is_refused_and_not_made_smaller() -> None:
    shape = shape_of({"seq_q": 1024, "head_dim": 256}, "float32")
    inputs = DEFINITION.make_inputs(shape, seed=0, device="cuda")
    with pytest.raises(OutOfResources):
        launch(Config(BLOCK_M=128, BLOCK_N=128, num_warps=8, num_stages=4, **FLAGS), inputs)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gpu_the_default_is_torchs_own_choice() -> None:
    from torch._inductor.virtualized import V

    for dtype, head_dim in (("bfloat16", 64), ("bfloat16", 128), ("float16", 128), ("bfloat16", 256), ("float32", 64)):
        (own,) = V.choices.get_flex_attention_fwd_configs(head_dim, getattr(torch, dtype), "cuda")
        found = IMPLEMENTATION.space.default(shape_of({"seq_q": 1024, "head_dim": head_dim}, dtype), current_device())
        assert tuple(found.values())[:4] == (own.block_m, own.block_n, own.num_warps, own.num_stages)
