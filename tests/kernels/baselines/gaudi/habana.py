"""A stand-in for Intel's bridge: FusedSDPA with its 13 or 15 arguments, and ``torch.hpu``, on the CPU.

In lazy mode nothing is computed before ``mark_step``, and only what is still held then: what that leaves out is NaN.
Time passes by the clock of the stand-in: each computation takes ``MILLISECONDS``, the first of a kernel ``COMPILE``
more. Signatures are those of HabanaAI/gaudi-pytorch-bridge (``hpex/kernels/FusedSDPA.py``) and docs.habana.ai.
"""

import inspect
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import pytest
import torch

from tests.kernels.baselines.signatures import habana_frameworks
from tests.kernels.baselines.stand_ins import attend

MILLISECONDS: Final = 0.25
COMPILE: Final = 4000.0


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

    def mark_step(self) -> None:
        assert self.lazy, "in eager mode mark_step does nothing but log a warning"
        self.log.append("mark_step")
        for out, compute, kernel in self._pending:
            held = out()
            if held is not None:
                self._execute(held, compute, kernel)
        self._pending.clear()

    def wrap_in_hpu_graph_func(self, func: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        recorded: list[tuple[torch.Tensor, Callable[[], torch.Tensor], str]] = []
        outs: list[torch.Tensor] = []

        def forward() -> torch.Tensor:
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


def fused_sdpa_class(device: Gaudi, arguments: int) -> type:
    """Make the class of release 1.19 (13 arguments) or of a later one (15), whose ``apply`` takes them by position."""
    stub = {13: habana_frameworks.forward_of_13, 15: habana_frameworks.forward_of_15}[arguments]
    signature = inspect.signature(stub)

    class FusedSDPA:
        forward = staticmethod(stub)

        @staticmethod
        def apply(*given: Any) -> torch.Tensor:
            bound = signature.bind(None, *given)
            bound.apply_defaults()
            device.arguments.append(tuple(bound.arguments.values())[1:])
            q, v = bound.arguments["q"], bound.arguments["v"]
            out = q.new_empty(*q.shape[:3], v.shape[3])
            return device.issue(out, lambda: answer(bound.arguments), "sdpa")

    return FusedSDPA


def answer(given: dict[str, Any]) -> torch.Tensor:
    """Compute FusedSDPA by its documentation: masks begin top-left, both ends of a window count."""
    left, right = given.get("window_size", (-1, -1))
    options = {"scale": given["scale"], "before": left, "after": 0 if given["is_causal"] else right, "offset": 0}
    parts = zip(*(given[name].transpose(1, 2) for name in "qkv"), strict=True)
    out = torch.stack([attend(*part, **options) for part in parts]).transpose(1, 2)
    if given["valid_seq_len"] is not None:
        for sequence, length in enumerate(given["valid_seq_len"].tolist()):
            out[sequence, :, length:] = torch.nan
    return out.to(given["q"].dtype)


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
