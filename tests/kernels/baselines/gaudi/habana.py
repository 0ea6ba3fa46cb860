"""A stand-in for Intel's bridge: FusedSDPA with its 13 or 15 arguments, and ``torch.hpu``, on the CPU.

It refuses what the bridge refuses (HabanaAI/gaudi-pytorch-bridge and docs.habana.ai), and what the documentation leaves
undefined is NaN. In lazy mode nothing is computed before ``mark_step``, and only what somebody still holds then. Time
passes by the clock of the stand-in: each computation takes ``MILLISECONDS``, the first of a kernel ``COMPILE`` more.
"""

import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import pytest
import torch

MILLISECONDS: Final = 0.25
COMPILE: Final = 4000.0

OPTIONS: Final = (
    "attn_mask",
    "dropout_p",
    "is_causal",
    "scale",
    "softmax_mode",
    "recompute_mode",
    "valid_seq_len",
    "seq_padding_type",
    "return_dropout_mask",
    "return_attn_probs",
    "window_size",
    "sink",
)

Sizes = tuple[int, int, int, int, int, int, int]  # B, H, H_kv, S_q, S_kv, D, D_v


class Gaudi:
    """The device: what was done, in order, and its clock."""

    def __init__(self, *, lazy: bool) -> None:
        self.lazy = lazy
        self.log: list[str] = []
        self.arguments: list[tuple[Any, ...]] = []  # of each call of FusedSDPA
        self.clock = 0.0
        self.found = True
        self._pending: list[tuple[weakref.ref[torch.Tensor], Callable[[], torch.Tensor], str]] = []
        self._captured: list[tuple[torch.Tensor, Callable[[], torch.Tensor], str]] | None = None
        self._compiled: set[str] = set()

    def issue(self, out: torch.Tensor, compute: Callable[[], torch.Tensor], kernel: str) -> torch.Tensor:
        """Have ``out`` computed: now, or in lazy mode later."""
        self.log.append(kernel)
        out.fill_(torch.nan)
        if self._captured is not None:
            self._captured.append((out, compute, kernel))
        elif self.lazy:
            self._pending.append((weakref.ref(out), compute, kernel))
        else:
            self._execute(out, compute, kernel)
        return out

    def mark_step(self, device_str: str = "", sync: bool = False) -> None:
        assert self.lazy, "in eager mode mark_step does nothing but log a warning"
        assert device_str == ""
        assert not sync, "sync waits for the host's side alone"
        self.log.append("mark_step")
        for out, compute, kernel in self._pending:
            held = out()
            if held is not None:
                self._execute(held, compute, kernel)
        self._pending.clear()

    def wrap_in_hpu_graph_func(
        self,
        func: Callable[..., torch.Tensor],
        asynchronous: bool = False,
        disable_tensor_cache: bool = False,
        dry_run: bool = False,
        max_graphs: int | None = None,
    ) -> Callable[..., torch.Tensor]:
        recorded: list[tuple[torch.Tensor, Callable[[], torch.Tensor], str]] = []
        outs: list[torch.Tensor] = []

        def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
            assert not args, "replay copies its arguments first"
            assert not kwargs
            assert not self._pending, "what was collected before would become part of the graph"
            if not outs:
                self.log.append("record")
                self._captured = recorded
                outs.append(func())
                self._captured = None
            else:
                self.log.append("replay")
            for out, compute, kernel in recorded:
                out.fill_(torch.nan)
                self._execute(out, compute, kernel)
            return outs[0]

        return forward

    def _execute(self, out: torch.Tensor, compute: Callable[[], torch.Tensor], kernel: str) -> None:
        self.clock += MILLISECONDS + (0.0 if kernel in self._compiled else COMPILE)
        self._compiled.add(kernel)
        with torch.no_grad():
            out.copy_(compute())

    def event(self) -> type:
        device = self

        class Event:
            def __init__(self, *, enable_timing: bool = False) -> None:
                assert enable_timing, "without it elapsed_time fails"
                self.time: float | None = None
                self.is_complete = False

            def record(self) -> None:
                assert not device._pending, "it would be recorded before what is collected"
                device.log.append("record event")
                self.time, self.is_complete = device.clock, False

            def synchronize(self) -> None:
                device.log.append("wait for event")
                self.is_complete = True

            def elapsed_time(self, end: "Event") -> float:
                assert self.time is not None
                assert end.time is not None
                assert end.is_complete, "the end may lie ahead"
                device.log.append("elapsed")
                return end.time - self.time

        return Event

    def synchronize(self) -> None:
        self.log.append("synchronize")


def check_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sizes: Sizes, options: dict[str, Any]) -> None:
    """The asserts of the bridge, for inference, and the layout that the test expects."""
    batch, heads, kv_heads, seq_q, seq_kv, head_dim, head_dim_v = sizes
    assert tuple(q.shape) == (batch, heads, seq_q, head_dim)
    assert tuple(k.shape) == (batch, kv_heads, seq_kv, head_dim)
    assert tuple(v.shape) == (batch, kv_heads, seq_kv, head_dim_v)
    assert all(tensor.is_contiguous() for tensor in (q, k, v))
    assert options["attn_mask"] is None
    assert options["dropout_p"] == 0.0
    assert type(options["is_causal"]) is bool
    assert options["softmax_mode"].lower() in ("none", "fast", "fp32")
    assert options["softmax_mode"].lower() != "fp32" or q.dtype == torch.bfloat16
    assert options["recompute_mode"] in (None, True, False)
    lengths = options["valid_seq_len"]
    if lengths is not None:
        assert options["is_causal"], "Valid sequence length is supported only with is_causal"
        assert (tuple(lengths.shape), lengths.dtype) == ((batch,), torch.int32)
        assert options["seq_padding_type"] == "right"
    assert not options["return_dropout_mask"]
    assert not options["return_attn_probs"]
    if options.get("window_size", (-1, -1)) != (-1, -1):
        assert options["recompute_mode"], "the other kernel is not given the window"
        assert options["softmax_mode"].lower() != "fp32"
    assert options.get("sink") is None


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """What FusedSDPA is documented to compute: masks begin top-left, both ends of a window count."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1).double(), v.repeat_interleave(group, 1).double()
    scores = q.double() @ k.mT * options["scale"]
    ahead = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    left, right = options.get("window_size", (-1, -1))
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    if options["is_causal"]:
        hidden |= ahead > 0
    if left >= 0:
        hidden |= ahead < -left
    if right >= 0:
        hidden |= ahead > right
    out: torch.Tensor = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    if options["valid_seq_len"] is not None:
        for sequence, length in enumerate(options["valid_seq_len"].tolist()):
            out[sequence, :, length:] = torch.nan
    return out.to(q.dtype)


def fused_sdpa_class(device: Gaudi, arguments: int, sizes: Sizes) -> type[torch.autograd.Function]:
    """FusedSDPA of release 1.19 (13 arguments) or of a later one (15), whose ``apply`` takes them by position alone."""

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, values: tuple[Any, ...]) -> torch.Tensor:
        options = dict(zip(OPTIONS, values, strict=False))
        check_call(q, k, v, sizes, options)
        device.arguments.append((q, k, v, *values))
        return device.issue(q.new_empty(*q.shape[:3], v.shape[3]), lambda: attend(q, k, v, options), "sdpa")

    class Positional(torch.autograd.Function):
        """By name, torch's releases differ in what ``apply`` takes."""

        @classmethod
        def apply(cls, *args: Any) -> Any:
            return super().apply(*args)  # type: ignore[no-untyped-call]

    class FusedSDPA13(Positional):
        @staticmethod
        def forward(
            ctx: Any,
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            attn_mask: Any = None,
            dropout_p: float = 0.0,
            is_causal: bool = False,
            scale: float | None = None,
            softmax_mode: str = "None",
            recompute_mode: bool | None = None,
            valid_seq_len: torch.Tensor | None = None,
            seq_padding_type: str = "left",
            return_dropout_mask: bool = False,
            return_attn_probs: bool = False,
        ) -> torch.Tensor:
            options = (
                attn_mask,
                dropout_p,
                is_causal,
                scale,
                softmax_mode,
                recompute_mode,
                valid_seq_len,
                seq_padding_type,
                return_dropout_mask,
                return_attn_probs,
            )
            return forward(q, k, v, options)

    class FusedSDPA15(Positional):
        @staticmethod
        def forward(
            ctx: Any,
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            attn_mask: Any = None,
            dropout_p: float = 0.0,
            is_causal: bool = False,
            scale: float | None = None,
            softmax_mode: str = "None",
            recompute_mode: bool | None = None,
            valid_seq_len: torch.Tensor | None = None,
            seq_padding_type: str = "left",
            return_dropout_mask: bool = False,
            return_attn_probs: bool = False,
            window_size: tuple[int, int] = (-1, -1),
            sink: torch.Tensor | None = None,
        ) -> torch.Tensor:
            options = (
                attn_mask,
                dropout_p,
                is_causal,
                scale,
                softmax_mode,
                recompute_mode,
                valid_seq_len,
                seq_padding_type,
                return_dropout_mask,
                return_attn_probs,
                window_size,
                sink,
            )
            return forward(q, k, v, options)

    return {13: FusedSDPA13, 15: FusedSDPA15}[arguments]


def install(monkeypatch: pytest.MonkeyPatch, device: Gaudi, fused_sdpa: type | None = None) -> None:
    """Let ``habana_frameworks`` and ``torch.hpu`` be the stand-in's, until the test ends."""

    def module(name: str, **attributes: Any) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    root = "habana_frameworks"
    for package in ("", ".torch", ".torch.hpex", ".torch.utils"):
        module(root + package, __path__=[])
    module(f"{root}.torch.core", mark_step=device.mark_step)
    module(f"{root}.torch.hpex.kernels", FusedSDPA=fused_sdpa or object)
    module(f"{root}.torch.utils.internal", is_lazy=lambda: device.lazy)
    # As in the bridge, there are no graphs in eager mode.
    graphs = {"wrap_in_hpu_graph_func": device.wrap_in_hpu_graph_func} if device.lazy else {}
    hpu = module(
        f"{root}.torch.hpu",
        Event=device.event(),
        synchronize=device.synchronize,
        is_available=lambda: device.found,
        **graphs,
    )
    monkeypatch.setattr(torch, "hpu", hpu, raising=False)
