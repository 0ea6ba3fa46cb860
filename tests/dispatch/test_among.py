"""Which implementations a pick may come from: ours, those of some names, or whatever was the fastest."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel, served_baselines
from autotune.dispatch import kernel as kernel_module
from autotune.errors import (
    BaselineUnavailableError,
    InvalidShapeError,
    UnknownNameError,
    UnsupportedCallError,
    UsageError,
)
from autotune.platforms.nvidia import A100
from autotune.registry import get_operation
from autotune.search_spaces.flash_attention.flex import IMPLEMENTATION as FLEX
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Candidate, Trial
from autotune.tuning.workloads import find_implementations
from tests import sample
from tests.dispatch.tables import H200, PAGED, Tables, default_of


def flex_row(race_id: str = "race-1", **changes: Any) -> Trial:
    """A winner of FlexAttention over the sample's shape."""
    chosen = FLEX.space.default(sample.shape(), NVIDIA_H200)
    return sample.trial(sample.shape(), chosen, "flex", race_id=race_id, source_hash=FLEX.source_hash, **changes)


def test_a_foreign_implementation_is_served_only_where_it_is_admitted(tables: Tables) -> None:
    tables.tune(sample.trial(timing=sample.timing(200.0)), flex_row(timing=sample.timing(150.0)))
    shape = sample.shape()
    assert get_kernel(shape, device=H200).candidate == Candidate("triton", sample.FAST)
    flex = get_kernel(shape, device=H200, among=("flex",))
    assert (flex.implementation, flex.provenance.rung) == ("flex", "exact")
    assert get_kernel(shape, device=H200, among=("triton",)).implementation == "triton"
    for among in (("triton", "flex"), ("flex", "triton")):
        assert get_kernel(shape, device=H200, among=among).implementation == "flex"  # faster in one race


def test_rows_of_different_races_are_not_compared(tables: Tables) -> None:
    tables.tune(sample.trial(timing=sample.timing(200.0)), flex_row("race-2", timing=sample.timing(150.0)))
    assert get_kernel(sample.shape(), device=H200, among=("flex", "triton")).implementation == "triton"


def test_each_admitted_implementation_has_its_default_behind_the_rows(tables: Tables) -> None:
    kernel = get_kernel(sample.shape(), device=H200)
    assert (kernel.candidate, kernel.provenance.rung) == (Candidate("triton", default_of(sample.shape())), "default")
    flex = get_kernel(sample.shape(), device=H200, among=("flex",))
    assert (flex.implementation, flex.provenance.rung) == ("flex", "default")


def test_the_fastest_is_the_baseline_that_won_the_stored_race(tables: Tables) -> None:
    row = sample.trial(timing=sample.timing(200.0), baseline="sdpa cudnn", baseline_timing=sample.timing(160.0))
    tables.tune(row)
    kernel = get_kernel(sample.shape(), device=H200, among="fastest")
    assert (kernel.implementation, kernel.config) == ("sdpa cudnn", Config())
    why = kernel.provenance
    assert (why.rung, why.row, why.baseline) == ("exact", row, "sdpa cudnn")
    assert why.reason == "sdpa cudnn won the race of the kernel tuned for this shape on NVIDIA H200"
    assert get_kernel(sample.shape(), device=H200).implementation == "triton"


@pytest.mark.parametrize("baseline_us", [199.0, 210.0])
def test_a_baseline_that_is_no_faster_is_not_served(tables: Tables, baseline_us: float) -> None:
    tables.tune(sample.trial(timing=sample.timing(200.0), baseline_timing=sample.timing(baseline_us)))
    assert get_kernel(sample.shape(), device=H200, among="fastest").implementation == "triton"


def test_a_baseline_is_served_for_the_very_shape_alone(tables: Tables) -> None:
    tables.tune(sample.trial(timing=sample.timing(200.0), baseline_timing=sample.timing(160.0)))
    near = replace(sample.shape(), batch=sample.shape().batch - 1)
    kernel = get_kernel(near, device=H200, among="fastest")
    assert (kernel.provenance.rung, kernel.implementation, kernel.provenance.baseline) == ("nearest", "triton", "")


class Kernel:
    """Ours, or a foreign kernel that takes no text of one letter."""

    def __init__(self, name: str = "ours") -> None:
        self.name = name

    def bind(self, config: Config, shape: Shape) -> Callable[..., object]:
        def call(q: str, **options: object) -> str:
            if self.name == "flex" and len(q) == 1:
                raise UnsupportedCallError("strides")
            return f"{self.name} of {q}"

        return call


def test_a_call_that_a_foreign_implementation_cannot_take_goes_to_the_next_candidate(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_module, "load_kernel", lambda operation, implementation: Kernel(implementation))
    tables.tune(sample.trial(timing=sample.timing(200.0)), flex_row(timing=sample.timing(150.0)))
    kernel = get_kernel(sample.shape(), device=H200, among=("flex", "triton"))
    assert [kernel("qq"), kernel("q"), kernel("qq")] == ["flex of qq", "triton of q", "flex of qq"]
    assert kernel.implementation == "flex"
    alone = get_kernel(sample.shape(), device=H200, among=("flex",))
    with pytest.raises(UnsupportedCallError, match="strides"):
        alone("q")


def test_a_call_that_a_baseline_cannot_do_goes_to_the_next_candidate(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Baseline:
        name = "sdpa cudnn"
        is_usual = verified_on_hardware = True

        def available(self) -> str | None:
            return None

        def unsupported(self, shape: object) -> str | None:
            return None

        def prepare(self, shape: object, inputs: object) -> Any:
            raise AssertionError

        def serve(self, shape: object, inputs: Any) -> Any:
            if inputs["scale"] is None:
                raise BaselineUnavailableError("strides")
            return f"baseline of {inputs['q']}"

    class Definition:
        make_inputs = check_shapes = empty_outputs = reference = statistic_slack = print  # never called

        def bind_inputs(self, shape: object, tensors: tuple[object, ...], options: dict[str, object]) -> Any:
            return {"q": tensors[0], **options}

    monkeypatch.setattr(served_baselines, "load_baselines", lambda operation: [Baseline()])
    monkeypatch.setattr(served_baselines, "load_definition", lambda operation: Definition())
    monkeypatch.setattr(kernel_module, "load_kernel", lambda operation, implementation: Kernel())
    tables.tune(sample.trial(timing=sample.timing(200.0), baseline_timing=sample.timing(160.0)))
    kernel = get_kernel(sample.shape(), device=H200, among="fastest")
    assert kernel("q", scale=1.0) == "baseline of q"
    assert kernel("q", scale=None) == "ours of q"
    assert kernel("q", scale=1.0, return_lse=True) == "ours of q"
    assert kernel("q", scale=1.0, out="buffer") == "ours of q"
    assert kernel("q", scale=1.0) == "baseline of q"  # for that call alone
    assert kernel.implementation == "sdpa cudnn"


def test_unknown_names_and_shapes_that_none_supports_are_refused(tables: Tables) -> None:
    names = (
        "triton, gluon_hopper, gluon_hopper_fp8, triton_split_keys, triton_masked, triton_split_width, "
        "triton_split_values, flex"
    )
    allowed = f"ours, fastest, or implementations of flash_attention: {names}$"
    with pytest.raises(UnknownNameError, match=f"^among='gluon' is unknown; allowed: {allowed}"):
        get_kernel(sample.shape(), device=H200, among=("gluon",))
    with pytest.raises(InvalidShapeError, match="head_dim=8 is not supported by flex"):
        get_kernel(sample.shape(head_dim=8), device=H200, among=("flex",))
    of_decode = "triton, gluon_hopper_latent, triton_latent"
    with pytest.raises(UnknownNameError, match=f"among='flex' is unknown; .* of paged_decode: {of_decode}$"):
        get_kernel(replace(PAGED), device=H200, among=("flex",))


@pytest.mark.parametrize("among", ["flex", "all", (), ("triton", 3), ["triton"], None])
def test_another_value_of_among_is_refused(tables: Tables, among: Any) -> None:
    with pytest.raises(UsageError, match=r"among=.* is not allowed; expected 'ours', 'fastest' or a tuple of names"):
        get_kernel(sample.shape(), device=H200, among=among)


@pytest.mark.parametrize(
    ("operation", "changes", "reason"),
    [
        ("paged_decode", {"kv_dtype": "float8_e4m3fn"}, "kv_dtype='float8_e4m3fn' needs conversions that sm_80 lacks"),
        ("paged_prefill", {"kv_dtype": "float8_e4m3fn"}, "kv_dtype='float8_e4m3fn' needs conversions that sm_80 lacks"),
        ("flash_attention", {"dtype": "float8_e4m3fn"}, "flash_attention/gluon_hopper_fp8 needs products of warp gr"),
    ],
)
def test_a_refusal_names_what_the_device_lacks_and_nothing_that_was_not_asked(
    operation: str, changes: dict[str, Any], reason: str
) -> None:
    shape = replace(sample.shape() if operation == "flash_attention" else PAGED, **changes)
    with pytest.raises(InvalidShapeError) as refused:
        get_kernel(shape, device="A100", operation=operation)
    assert str(refused.value).startswith(reason)
    assert not {"latents", "triton"} & set(str(refused.value).replace("/", " ").split())
    assert str(refused.value).count("sm_80") == 1
    with pytest.raises(InvalidShapeError) as not_searched:
        find_implementations(get_operation(operation), shape, A100)
    assert str(not_searched.value) == str(refused.value)


def test_a_refusal_of_a_shape_that_no_architecture_computes_has_every_reason() -> None:
    with pytest.raises(
        InvalidShapeError, match=r"gluon_hopper_fp8 .*; flash_attention/triton_masked computes no float"
    ):
        get_kernel(replace(sample.shape(), dtype="float8_e4m3fn", sinks=True), device=H200)
