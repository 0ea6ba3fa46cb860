"""Compiled, exported and mapped calls compute what they should, in few compiles, with the kernel of each length."""

import pytest

from tests.contract.interpreting import interpret
from tests.torch_ops import traces
from tests.torch_ops.calls import OPS

SLOW = [pytest.mark.slow]  # each takes seconds, of which Dynamo takes most


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_torch_finds_no_fault_with_an_op(name: str) -> None:
    assert interpret(traces.opcheck_failure, name) is None


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", *(pytest.param(name, marks=SLOW) for name in ("aot_eager", "inductor"))])
def test_six_lengths_need_two_compiles_at_most_and_get_their_own_kernels(backend: str) -> None:
    assert interpret(traces.lengths_failure, backend) is None


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("what", ["model", "step", "prefill_and_merge"])
def test_what_is_compiled_computes_the_same(what: str, backend: str) -> None:
    assert interpret(getattr(traces, f"{what}_failure"), backend) is None


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_module_takes_any_length(strict: bool) -> None:
    assert interpret(traces.export_failure, strict) is None


def test_derivatives_are_refused_by_their_name() -> None:
    assert interpret(traces.derivatives_failure) is None


@pytest.mark.slow
def test_mapped_attention_is_a_batch() -> None:
    assert interpret(traces.mapped_failure) is None


@pytest.mark.parametrize("backend", [None, pytest.param("aot_eager", marks=SLOW)])
def test_autocast_casts_the_inputs_and_no_cache(backend: str | None) -> None:
    assert interpret(traces.autocast_failure, backend) is None


@pytest.mark.parametrize("backend", [None, pytest.param("aot_eager", marks=SLOW)])
def test_inference_mode(backend: str | None) -> None:
    assert interpret(traces.inference_failure, backend) is None


def test_buffers_get_the_same_bits() -> None:
    assert interpret(traces.buffers_failure, "cpu") is None


ON_GPU = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # compilers' advice is no error


@pytest.mark.parametrize("backend", [pytest.param(name, marks=ON_GPU) for name in ("aot_eager", "inductor")])
def test_gpu_six_lengths_and_a_model(backend: str) -> None:
    assert traces.lengths_failure(backend, "cuda") is None
    assert traces.model_failure(backend, "cuda") is None


@pytest.mark.parametrize("how", [pytest.param(name, marks=ON_GPU) for name in ("eager", "aot_eager", "inductor")])
def test_gpu_captured_decode_replays_with_lengths_that_change(how: str) -> None:
    assert traces.captured_failure(how) is None


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
def test_gpu_graphs_that_torch_captures_itself() -> None:
    assert traces.graph_trees_failure() is None


@pytest.mark.gpu
def test_gpu_buffers_get_the_same_bits() -> None:
    assert traces.buffers_failure("cuda") is None
