"""Gluon kernels for Hopper on the CPU, over NumPy: what no interpreter of Triton's runs.

Each warp partition of a program is a thread. Whatever is asynchronous happens as late as it may: a product reads its
operands when it is waited for, and a store reads its tile when that is. A slot that is handed back too early, a wrong
phase of a barrier or a missing wait then gives wrong numbers, and a hang ends with ``HangError``. Threads take turns by
a seed: a run can be repeated.
"""

import re
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.runtime.jit import JITFunction

from autotune.kernels import gluon as ours
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_ring import wait_for_group
from tests.kernels.simulated_memory import (
    WARP_THREADS,
    Barrier,
    Descriptor,
    Named,
    Pointer,
    Shared,
    allocate,
    expect,
    init,
    load,
    store,
)
from tests.kernels.simulated_numbers import (
    DTYPES,
    E4M3,
    E4M3_VALUES,
    Tensor,
    pack_pairs,
    pack_quads,
    sum_by_steps,
    unpack_pairs,
    unpack_quads,
    unset,
)
from tests.kernels.simulated_threads import Threads


class Product:
    """A product that has been issued; it reads its factors when it is waited for."""

    def __init__(self, a: Any, b: Any, before: Any, add: bool) -> None:
        self.a, self.b, self.before, self.add = a, b, before, add
        self.done: Any = None
        self.type = SimpleNamespace(layout=None)

    def finish(self) -> Any:
        if self.done is None:
            a, b = (np.asarray(each.array if isinstance(each, Shared) else each) for each in (self.a, self.b))
            before = self.before.finish() if isinstance(self.before, Product) else self.before
            total = np.asarray(before) if self.add else np.zeros((a.shape[0], b.shape[1]), np.float32)
            if a.dtype == E4M3:
                total = sum_by_steps(total, E4M3_VALUES[a], E4M3_VALUES[b])
            else:
                total = a.astype(np.float32) @ b.astype(np.float32) + total
            self.done = total.astype(np.float32).view(Tensor)
        return self.done


class Program:
    """One block of the grid: its threads, its named barriers, and stores that are under way."""

    def __init__(self, number: int, count: int, seed: int) -> None:
        self.number, self.count = number, count
        self.threads = Threads(f"{seed} {number}")
        self.named: dict[int, Named] = {}
        self.local = threading.local()
        self.unseen: list[tuple[Shared, Any]] = []  # by products: copies of threads that no fence came after

    def specialize(self, parts: Any, warps: Sequence[int], registers: Sequence[int]) -> None:
        def work(part: Any, count: int) -> None:
            self.local.threads, self.local.stores, self.local.products = count * WARP_THREADS, [], []
            self.local.gathered = []
            part[0](*part[1])
            assert not self.local.stores, "the block ends under a store that reads its memory"

        self.threads.run([partial(work, *each) for each in zip(parts, (4, *warps), strict=True)])

    def multiply(self, a: Any, b: Any, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> Any:
        assert is_async
        product = Product(a, b, acc, use_acc)
        self.local.products.append(product)
        self.threads.pause()
        return product

    def wait_products(self, left: int, deps: Sequence[Any]) -> Any:
        self.threads.pause_long()
        while len(self.local.products) > left:
            self.local.products.pop(0).finish()
        found = [each.done if isinstance(each, Product) else each for each in deps]
        assert all(each is not None for each in found), "a product is used that may still run"
        return found[0] if len(found) == 1 else tuple(found)

    def copy_in(self, desc: Descriptor, place: Sequence[int], barrier: Barrier, tile: Shared) -> None:
        tile.array[...] = unset(tile.dtype)  # until it is there

        def arrive() -> None:
            tile.array[...] = desc.read(place)
            barrier.arrive(0, received=desc.block_type.nbytes)

        self.threads.complete_later(arrive)

    def gather_in(self, tile: Shared, pointer: "Pointer", mask: Any) -> None:
        tile.array[...] = unset(tile.dtype)
        offsets, mask = np.broadcast_arrays(pointer.offsets, mask)
        assert offsets.shape == tile.array.shape
        assert not mask.any() or 0 <= offsets[mask].min() <= offsets[mask].max() < pointer.array.size, "no row of it"
        self.local.gathered.append((tile, load(Pointer(pointer.array, offsets), mask)))

    def gathered_arrive(self, barrier: Barrier, *, increment_count: bool) -> None:
        """Let the copies of all threads come to a barrier later on; products see them after a fence alone."""
        assert not increment_count
        gathered, threads, self.local.gathered = self.local.gathered, self.local.threads, []

        def arrive() -> None:
            self.unseen += gathered
            barrier.arrive(threads)

        self.threads.complete_later(arrive)

    def fence(self) -> None:
        for tile, found in self.unseen:
            tile.array[...] = found
        self.unseen.clear()

    def copy_out(self, desc: Descriptor, place: Sequence[int], tile: Shared) -> None:
        self.local.stores.append((desc, tuple(place), tile))

    def wait_copies_out(self, left: int) -> None:
        self.threads.pause_long()
        while len(self.local.stores) > left:
            desc, place, tile = self.local.stores.pop(0)
            desc.write(place, tile.array)

    def wait(self, barrier: Barrier, parity: int) -> None:
        self.threads.pause_until(lambda: barrier.phase != parity, barrier.describe)

    def arrive(self, barrier: Barrier, count: int) -> None:
        barrier.arrive(count)
        self.threads.pause()

    def assembly(self, text: str, *_: Any, **__: Any) -> None:
        found = re.match(r"bar\.(sync|arrive) (\d+), (\d+);", text)
        assert found, text
        self.threads.pause()
        barrier = self.named.setdefault(int(found[2]), Named())
        rounds = barrier.rounds
        barrier.come(self.local.threads, int(found[3]))
        if found[1] == "sync":
            self.threads.pause_until(lambda: barrier.rounds > rounds, barrier.describe)


def _language(program: Program) -> SimpleNamespace:
    def tensor(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: np.asarray(function(*given, **named)).view(Tensor)

    def same(kind: Any, low: Any, high: Any) -> Any:
        return kind(low, high) if np.ndim(low) == np.ndim(high) == 0 else np.asarray(kind(low, high)).view(Tensor)

    return SimpleNamespace(
        arange=lambda low, high, layout=None: np.arange(low, high).view(Tensor),
        zeros=lambda shape, dtype, layout=None: np.zeros(shape, DTYPES[dtype]).view(Tensor),
        full=lambda shape, value, dtype, layout=None: np.full(shape, value, DTYPES[dtype]).view(Tensor),
        zeros_like=lambda value: np.zeros_like(value),
        exp2=tensor(np.exp2),
        log2=tensor(np.log2),
        abs=tensor(np.abs),
        where=tensor(np.where),
        join=tensor(lambda low, high: np.stack([low, high], -1)),
        max=lambda value, axis: np.max(value, axis),
        min=lambda value, axis: np.min(value, axis),
        sum=lambda value, axis=None: np.sum(value, axis, dtype=None if value.dtype.kind in "biu" else np.float32),
        cumsum=lambda value, axis: np.cumsum(value, axis).view(Tensor),
        maximum=lambda a, b: same(np.maximum, a, b) if np.ndim(a) or np.ndim(b) else max(a, b),
        minimum=lambda a, b: same(np.minimum, a, b) if np.ndim(a) or np.ndim(b) else min(a, b),
        cdiv=lambda a, b: -(-a // b),
        cast=lambda value, dtype: value,
        constexpr=lambda value: value,
        convert_layout=lambda value, layout: value,
        static_range=range,
        range=lambda low, high, **named: range(low, high),
        program_id=lambda axis: program.number,
        num_programs=lambda axis: program.count,
        allocate_shared_memory=allocate,
        warp_specialize=program.specialize,
        inline_asm_elementwise=program.assembly,
        load=load,
        store=store,
        trans=lambda value: value.permute((1, 0)),
        SliceLayout=lambda *given: None,
        SwizzledSharedLayout=lambda *given: None,
        BlockedLayout=lambda *given: None,
        DotOperandLayout=lambda **given: None,
        NVMMASharedLayout=SimpleNamespace(get_default_for=lambda shape, dtype: None),
        **{name: getattr(gl, name) for name in ("float32", "float16", "int32", "int64")},
    )


def simulate(kernel: JITFunction[Any], grid: int, *arguments: Any, seed: int = 0, **constants: Any) -> None:
    """Run a kernel's programs, one after another, whose threads take turns by a seed."""
    for number in range(grid):
        program = Program(number, grid, seed)
        _Rebuilt(program).function(kernel)(*arguments, **constants)


class _Rebuilt:
    """The functions of a kernel over the simulated language, for one program."""

    def __init__(self, program: Program) -> None:
        self._language = _language(program)
        self._functions: dict[int, Callable[..., Any]] = {}
        self._known = {
            id(ours.warpgroup_mma): program.multiply,
            id(ours.warpgroup_mma_wait): program.wait_products,
            id(ours.copy_in): program.copy_in,
            id(ours.copy_out): program.copy_out,
            id(ours.wait_copies_out): program.wait_copies_out,
            id(ours.gather_in): program.gather_in,
            id(ours.gathered_arrive): program.gathered_arrive,
            id(ours.fence_async_shared): program.fence,
            id(wait_for_group): lambda: None,
            id(ours.product_layout): lambda width: None,
            id(ours.view_as): lambda tile, dtype, shape, layout: tile.view_as(shape),
            id(ours.pack_pairs): pack_pairs,
            id(ours.unpack_pairs): unpack_pairs,
            id(ours.product_layout_of_bytes): lambda width: None,
            id(ours.pack_quads): pack_quads,
            id(ours.unpack_quads): unpack_quads,
            id(ours.mbarrier): SimpleNamespace(
                init=init,
                expect=expect,
                wait=program.wait,
                arrive=program.arrive,
                MBarrierLayout=lambda: "barrier",
            ),
        }

    def function(self, jitted: Any) -> Callable[..., Any]:
        """Return a function that was decorated, with the globals that it names replaced."""
        original = jitted.fn
        if id(jitted) not in self._functions:
            own: dict[str, Any] = {"__builtins__": __builtins__}
            made = types.FunctionType(original.__code__, own, original.__name__, original.__defaults__)
            made.__kwdefaults__ = original.__kwdefaults__
            self._functions[id(jitted)] = made
            for name in _names(original.__code__):
                if name in original.__globals__:
                    own[name] = self._replace(original.__globals__[name])
        return self._functions[id(jitted)]

    def _replace(self, value: Any) -> Any:
        if id(value) in self._known:
            return self._known[id(value)]
        if value is gl or value is tl:
            return self._language
        if isinstance(value, JITFunction):
            return self.function(value)
        if hasattr(value, "fn") and hasattr(value, "__triton_builtin__"):
            return value.fn
        return value.value if isinstance(value, tl.constexpr) else value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)
