"""A call that a candidate cannot take goes to the next, and so do all like it, which it is not asked about again."""

import logging
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch

import autotune
from autotune import eager_calls, registry, torch_ops
from autotune.device import NVIDIA_H200
from autotune.dispatch import declined_calls, get_kernel, pick_for_device, reload, stats
from autotune.dispatch import kernel as kernel_module
from autotune.dispatch.declined_calls import DeclinedCalls
from autotune.errors import UnsupportedCallError, UsageError
from autotune.search_spaces.flash_attention.gluon_hopper import IMPLEMENTATION as GLUON
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.trial import Candidate
from tests import sample
from tests.dispatch.picky import ELSE, IMPLEMENTATION, KERNEL
from tests.dispatch.tables import H200, Tables, default_of

SIZES: Final = (1, 16, 2, 16)
SHAPE: Final = AttentionShape(batch=1, heads=2, seq_q=16, head_dim=16, dtype="float16")
PICKY: Final = Config(ROWS=32)
NEXT: Final = Candidate("triton", default_of(SHAPE))
REASON: Final = f"served {NEXT} instead of picky ROWS=32, because k: copies need multiples of 16 bytes"


@pytest.fixture
def picky(tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The picky one won the race of the shape before Triton's, and tensors of the CPU count as the GPU's."""
    monkeypatch.setattr(registry, "_implementations", dict(registry._implementations))
    registry.register_implementation("flash_attention", "picky", "tests.dispatch.picky:IMPLEMENTATION")
    monkeypatch.setattr(kernel_module, "load_kernel", lambda operation, name: KERNEL if name == "picky" else ELSE)
    monkeypatch.setattr(eager_calls, "gpu_of", lambda tensor: 0)
    fastest = sample.trial(SHAPE, PICKY, "picky", source_hash=IMPLEMENTATION.source_hash, timing=sample.timing(100.0))
    tables.tune(fastest)
    caplog.set_level(logging.INFO, logger="autotune")
    KERNEL.asked.clear()
    ELSE.asked.clear()
    yield
    monkeypatch.undo()
    reload()


def tensors(**odd: torch.Tensor) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(SIZES, generator=generator).half() for name in ("q", "k", "v")} | odd


def odd_strides() -> torch.Tensor:
    found = torch.empty_strided(SIZES, (16 * 35, 35, 17, 1), dtype=torch.float16)
    return found.copy_(torch.randn(SIZES, generator=torch.Generator().manual_seed(1)))


def odd_address() -> torch.Tensor:
    return torch.randn(16 * 32 + 1, generator=torch.Generator().manual_seed(2)).half()[1:].view(SIZES)


def by_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2)


def served_instead(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "instead of" in record.getMessage()]


@pytest.mark.usefixtures("picky")
def test_each_kind_of_call_is_told_apart_once(caplog: pytest.LogCaptureFixture) -> None:
    before = stats().declines
    kernel = pick_for_device(SHAPE, 0, "flash_attention")
    assert (kernel.implementation, kernel.provenance.declined) == ("picky", ())
    for odd, asked in ((odd_strides(), [True]), (odd_address(), [True])):
        for _ in range(3):
            given = tensors(k=odd)
            torch.testing.assert_close(autotune.attention(*given.values()), by_torch(**given))
        assert (KERNEL.asked, ELSE.asked) == (asked, [False] * 3)
        KERNEL.asked.clear()
        ELSE.asked.clear()
    autotune.attention(*tensors().values())
    assert (KERNEL.asked, ELSE.asked) == ([False], [])
    assert stats().declines - before == 2
    assert served_instead(caplog) == [f"flash_attention: {SHAPE}: {REASON}"] * 2
    assert kernel.provenance.declined == (REASON,)
    assert kernel.implementation == "picky"
    assert str(kernel.provenance) == "tuned for this shape on NVIDIA H200"


@pytest.mark.usefixtures("picky")
def test_a_bound_kernel_and_the_op_of_traced_code_go_on_likewise() -> None:
    given, kernel = tensors(v=odd_strides()), get_kernel(SHAPE)
    torch.testing.assert_close(kernel(**given), by_torch(**given))
    assert (KERNEL.asked, len(ELSE.asked)) == ([True], 1)
    options: dict[str, Any] = {"causal": False, "window": None, "softcap": None, "scale": None}
    options |= {"q_lens": None, "kv_lens": None, "kv_starts": None, "check": False}
    options |= {"attn_mask": None, "sinks": None, "kv_ends": None}
    found = torch_ops.ATTENTION(*given.values(), **options, return_lse=False, out=None)
    torch.testing.assert_close(found, by_torch(**given))
    assert len(ELSE.asked) == 2


@pytest.mark.usefixtures("picky")
@pytest.mark.parametrize("pin", [{"implementation": "picky"}, {"implementation": "picky", "config": {"ROWS": 16}}])
def test_a_kernel_that_was_named_raises(monkeypatch: pytest.MonkeyPatch, pin: dict[str, Any]) -> None:
    given = tensors(k=odd_strides())
    kernel = get_kernel(SHAPE, **pin)
    monkeypatch.setenv("AUTOTUNE_CONFIG", "flash_attention/picky:ROWS=16")
    reload()
    for call in (kernel, kernel, autotune.attention):
        with pytest.raises(UnsupportedCallError, match=r"^k: copies need multiples of 16 bytes$"):
            call(*given.values())
    kernel(**tensors())


@pytest.mark.usefixtures("picky")
def test_after_as_many_kinds_as_are_kept_it_asks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declined_calls, "KEPT", 1)
    kernel = get_kernel(SHAPE)
    for odd in (odd_strides(), odd_address(), odd_strides()):
        for _ in range(2):
            kernel(**tensors(k=odd))
    assert KERNEL.asked == [True] * 3


def test_kinds_differ_in_all_that_a_call_may_be_declined_by() -> None:
    known, q = DeclinedCalls(), torch.zeros(SIZES)
    assert known.add(1, (q,), {"scale": 1.0}, "why")
    assert not known.add(1, (q,), {"scale": 1.0}, "why")
    assert known.add(2, (q,), {"scale": 1.0}, "another why")
    assert known.of((torch.ones(SIZES),), {"scale": 1.0}) == {1, 2}
    assert known.reasons == ("why", "another why")
    others: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((q.half(),), {"scale": 1.0}),
        ((q.to("meta"),), {"scale": 1.0}),
        ((q.transpose(1, 2),), {"scale": 1.0}),
        ((torch.zeros(1, 8, 2, 16),), {"scale": 1.0}),
        ((torch.zeros(16 * 32 + 1)[1:].view(SIZES),), {"scale": 1.0}),
        ((q,), {"scale": True}),
        ((q,), {"scale": 1}),
        ((q,), {}),
        ((q, None), {"scale": 1.0}),
    ]
    for given in others:
        assert known.of(*given) == set(), given


def test_what_has_no_signature_is_declined_every_time() -> None:
    known = DeclinedCalls()
    assert not known.add(1, ([],), {}, "why")
    assert known.reasons == ()
    assert known.of(([],), {}) == set()


def test_what_triton_cannot_interpret_is_not_served_on_the_cpu(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    config = GLUON.space.default(SHAPE, NVIDIA_H200)
    row = sample.trial(SHAPE, config, "gluon_hopper", source_hash=GLUON.source_hash, timing=sample.timing(100.0))
    tables.tune(row)
    assert get_kernel(SHAPE, device=H200).candidate == Candidate("gluon_hopper", config)
    assert pick_for_device(SHAPE, 0, "flash_attention").candidate == Candidate("gluon_hopper", config)
    assert pick_for_device(SHAPE, None, "flash_attention").candidate == NEXT
    monkeypatch.setenv("AUTOTUNE_CONFIG", "flash_attention/gluon_hopper")
    reload()
    with pytest.raises(UsageError, match=r"^AUTOTUNE_CONFIG='flash_attention/gluon_hopper': Triton's interpreter can"):
        pick_for_device(SHAPE, None, "flash_attention")
    assert pick_for_device(SHAPE, 0, "flash_attention").implementation == "gluon_hopper"
