"""Traces that torch makes of the public functions, run, compared and counted; each returns what is wrong, or None.

These need Triton's interpreter, or a GPU: ``tests.contract.interpreting`` runs them in a process of their own.
"""

import io
import math
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import autotune
from autotune import eager_calls
from autotune.dispatch import TunedKernel
from autotune.errors import NotDifferentiableError
from autotune.shape import AttentionShape
from tests import sample
from tests.kernels.numerics import dense_attention
from tests.torch_ops.calls import (
    HALF,
    HEADS,
    KV_HEADS,
    WIDTH,
    arguments_of,
    decode_failure,
    dense,
    dense_failure,
    draw,
    new_tokens,
    op_of,
    packed,
    paged,
    prefill_failure,
    untuned,
)

LENGTHS: Final = (32, 48, 7, 96, 128, 65)
TUNED: Final = (32, 128)
SERVED: Final = {32: ("exact", 32), 48: ("nearest", 32), 96: ("nearest", 128), 128: ("exact", 128)}
MOST_COMPILES: Final = 2


def opcheck_failure(name: str) -> str | None:
    """Run torch's own checks of an op: schema, gradients, fake results, and traced with symbols for sizes."""
    with untuned():
        found = torch.library.opcheck(op_of(name), arguments_of(name), raise_exception=False)
    wrong = {check: str(result) for check, result in found.items() if result != "SUCCESS"}
    return str(wrong or "") or None


def compiled(function: Callable[..., Any], backend: str) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    """Return a function compiled without a break for sizes that change, and what counts the compiles."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, fullgraph=True, dynamic=True, backend=counter), counter


def lengths_failure(backend: str, device: str = "cpu") -> str | None:
    """Compile attention once and call it with six lengths: numbers, and a pick for each length."""
    picked: list[TunedKernel] = []

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return autotune.attention(q * 2, k / 2, v, causal=True, return_lse=True)

    def pick(*arguments: Any) -> TunedKernel:
        picked.append(autotune.dispatch.pick_for_device(*arguments))
        return picked[-1]

    with untuned() as tables, pytest.MonkeyPatch.context() as patch:
        config = sample.config(BLOCK_Q=32, BLOCK_K=32, num_warps=2, loads="pointer")  # valid for all lengths
        tables.tune(*(sample.trial(shape_of(seq), config) for seq in TUNED))
        patch.setattr(eager_calls, "pick_for_device", pick)
        call, counter = compiled(attend, backend)
        for seq in LENGTHS:
            q, k, v = dense(seq, device=device)
            if failure := dense_failure(call(q, k, v), q * 2, k / 2, v):
                return f"length {seq}: {failure}"
            why = picked[-1].provenance
            served = (why.rung, None if why.row is None else why.row.shape.as_dict()["seq_q"])
            if picked[-1].shape != shape_of(seq) or served != SERVED.get(seq, ("default", None)):
                return f"length {seq}: {picked[-1]!r} is served from {served}"
    if len(picked) != len(LENGTHS):
        return f"{len(picked)} picks for {len(LENGTHS)} calls"
    return None if counter.frame_count <= MOST_COMPILES else f"{counter.frame_count} compiles"


def shape_of(seq: int) -> AttentionShape:
    sizes: dict[str, Any] = {"batch": 2, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": WIDTH}
    return AttentionShape(**sizes, seq_q=seq, dtype="float16", causal=True)


class Layer(torch.nn.Module):
    """Attention and a projection, each added to what it reads; ``attend`` is ours or the truth."""

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.attend = attend
        self.inward = torch.nn.Linear(HEADS * WIDTH, (HEADS + 2 * KV_HEADS) * WIDTH)
        self.outward = torch.nn.Linear(HEADS * WIDTH, HEADS * WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        heads = self.inward(hidden).unflatten(2, (-1, WIDTH)).split((HEADS, KV_HEADS, KV_HEADS), 2)
        return hidden + torch.nn.functional.silu(self.outward(self.attend(*heads).flatten(2)))


def model_of(attend: Callable[..., torch.Tensor]) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(Layer(attend), Layer(attend))


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return autotune.attention(q, k, v, causal=True)


def truth(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return dense_attention(q, k, v, causal=True, scale=WIDTH**-0.5)[0]


@torch.no_grad()
def model_failure(backend: str, device: str = "cpu") -> str | None:
    """Compile a model of two layers in fp32, whose error is that of fp32's few roundings."""
    with untuned():
        call, counter = compiled(model_of(ours).to(device), backend)
        exact = model_of(truth).to(device).double()
        for seq in LENGTHS:
            hidden = draw(2, seq, HEADS * WIDTH, dtype=torch.float32, device=device)
            error = (call(hidden).double() - exact(hidden.double())).abs().max().item()
            if error > 1e-5:
                return f"length {seq}: error {error}"
    return None if counter.frame_count <= MOST_COMPILES else f"{counter.frame_count} compiles"


def export_failure(strict: bool) -> str | None:
    """Export a module for any length, save and load it, and call what was loaded with another length."""

    class Module(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return autotune.attention(q, k, v, causal=True, return_lse=True)

    seq = torch.export.Dim("seq", min=2, max=4096)
    program = torch.export.export(Module(), dense(33), dynamic_shapes=({1: seq},) * 3, strict=strict)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    if "autotune.attention_with_lse.default" not in targets:
        return f"the graph calls {targets}"
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    with untuned():
        return dense_failure(torch.export.load(saved).module()(*dense(50)), *dense(50))


def step(tokens: dict[str, Any], tensors: dict[str, Any], out: torch.Tensor) -> Any:
    """One step of a server: append, then decode into a buffer."""
    autotune.append_kv(**tokens)
    return autotune.paged_decode(**tensors, out=out) + 1


def step_failure(backend: str) -> str | None:
    """Compile a server's step: caches and buffer are written in place, over batches and lengths that change."""
    with untuned():
        call, counter = compiled(step, backend)
        for lengths in ((33, 20), (1, 64, 17), (64,) * 5):
            tensors = paged(lengths)
            last = tensors["seq_lens"].long() - 1
            pages = tensors["page_table"].gather(1, (last // 16)[:, None])[:, 0]
            tokens = {name: draw(len(lengths), KV_HEADS, WIDTH, seed=seed) for name, seed in (("k", 1), ("v", 2))}
            tokens |= {"slots": pages * 16 + last % 16}
            before = {name: tensors[name].clone() for name in ("k_cache", "v_cache")}
            out = torch.full((len(lengths), HEADS, WIDTH), math.nan, dtype=HALF)
            found = call(tokens | {name: tensors[name] for name in before}, tensors, out)
            for name, cache in before.items():
                cache.flatten(0, 1)[tokens["slots"]] = tokens[name[0]]
                if not torch.equal(tensors[name], cache):
                    return f"lengths {lengths}: {name} is not as appended"
            if failure := decode_failure(out, tensors):
                return f"lengths {lengths}: {failure}"
            if not torch.equal(found, out + 1):
                return f"lengths {lengths}: what follows the op reads another buffer"
    return None if counter.frame_count <= MOST_COMPILES else f"{counter.frame_count} compiles"


def prefill_and_merge_failure(backend: str) -> str | None:
    """Compile prefill; and attention over two parts of the keys, merged into a buffer."""

    def parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        halves = (slice(20), slice(20, None))
        pairs = [autotune.attention(q, k[:, half], v[:, half], return_lse=True) for half in halves]
        return autotune.merge_attention([o for o, _ in pairs], [lse for _, lse in pairs], lse_layout="BHS", out=out)

    with untuned():
        call, _ = compiled(autotune.paged_prefill, backend)
        for counts in ((3, 5), (1, 30)):
            given = packed(counts, (33, 40))
            if failure := prefill_failure(call(**given), given):
                return failure
        q, k, v = dense(40, dtype=torch.float32)
        out = torch.empty_like(q)
        found = compiled(parts, backend)[0](q[:, -1:], k, v, out[:, -1:])
        expected = dense_attention(q[:, -1:], k, v, scale=WIDTH**-0.5)[0]
        error = (found[0].double() - expected).abs().max().item()
    return None if error < 1e-6 and torch.equal(found[0], out[:, -1:]) else f"merged: error {error}"


def mapped_failure() -> str | None:
    """Map attention over any dimension of some of its tensors: equal to a loop, and one launch."""
    with untuned():
        q, k, v = (torch.stack([tensor, tensor.flip(1), tensor / 2]) for tensor in dense(9))
        for places in ((0, 0, 0), (3, None, 0), (0, None, None)):
            given = [each if place is not None else each[0] for each, place in zip((q, k, v), places, strict=True)]
            moved = [each if not place else each.movedim(0, place) for each, place in zip(given, places, strict=True)]
            found = torch.vmap(lambda *t: autotune.attention(*t, causal=True, return_lse=True), places)(*moved)
            for index in range(3):
                one = [each if place is None else each[index] for each, place in zip(given, places, strict=True)]
                alone = autotune.attention(*one, causal=True, return_lse=True)
                if not all(map(torch.equal, (each[index] for each in found), alone)):
                    return f"mapped along {places}: problem {index} differs"
    return None


def autocast_failure(backend: str | None) -> str | None:
    """Attend, append and decode under autocast: inputs are cast, and the cache is not."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=HALF):
            return autotune.attention(q, k, v, causal=True)

    def decode(tokens: dict[str, Any], tensors: dict[str, Any]) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            autotune.append_kv(**tokens)
            return autotune.paged_decode(**tensors)

    with untuned():
        rounded = dense(20)
        wide = [tensor.float() for tensor in rounded]
        call = attend if backend is None else compiled(attend, backend)[0]
        found = call(wide[0], wide[1], rounded[2])  # of two types, as after a layer that autocast leaves in fp32
        if not torch.equal(found, autotune.attention(*rounded, causal=True)) or found.dtype != HALF:
            return "attention is not that of the cast tensors"
        tensors, tokens = paged((33, 20)), new_tokens(0)
        tokens = tokens | {"k": draw(1, KV_HEADS, WIDTH), "v": draw(1, KV_HEADS, WIDTH), "slots": torch.tensor([0])}
        tokens |= {name: tensors[name] for name in ("k_cache", "v_cache")}
        widened = {name: tokens[name].float() for name in ("k", "v")}
        call = decode if backend is None else compiled(decode, backend)[0]
        out = call(tokens | widened, tensors | {"q": tensors["q"].float()})
        if out.dtype != HALF or not torch.equal(tensors["k_cache"][0, 0], tokens["k"][0]):
            return "the cache was cast"
        return decode_failure(out, tensors)


def buffers_failure(device: str) -> str | None:
    """Write into buffers: the same bits as without, rows between them as they were, the very buffer returned."""
    with untuned():
        q, k, v = dense(40, device=device)
        room = torch.full((2, HEADS, 41, 3 * WIDTH), math.nan, dtype=HALF, device=device)
        strided = room.transpose(1, 2)[:, :40, :, WIDTH : 2 * WIDTH]  # heads apart, and a gap after each row
        found, lse = autotune.attention(q, k, v, causal=True, return_lse=True, out=strided)
        expected = autotune.attention(q, k, v, causal=True, return_lse=True)
        if found is not strided or not all(map(torch.equal, (found, lse), expected)):
            return "attention: another result in a buffer"
        strided.fill_(math.nan)
        if not room.isnan().all():
            return "attention: memory beside the buffer was written"
        if autotune.attention(q, k[:, :0], v[:, :0], out=strided).any() or strided.any():
            return "attention: without keys the buffer is not 0"
        for name, given in (("paged_decode", paged((33, 20))), ("paged_prefill", packed((3, 5), (33, 20)))):
            function = getattr(autotune, name)
            tensors = {each: tensor.to(device) for each, tensor in given.items()}
            rows = torch.full((tensors["q"].shape[0] + 2, HEADS, WIDTH), math.nan, dtype=HALF, device=device)
            out, version = rows[1:-1], rows._version
            found, lse = function(**tensors, return_lse=True, out=out)
            if found is not out or rows._version == version:
                return f"{name}: not the buffer, or torch does not know that it was written"
            if not all(map(torch.equal, (found, lse), function(**tensors, return_lse=True))):
                return f"{name}: another result in a buffer"
            if not rows[[0, -1]].isnan().all():
                return f"{name}: memory beside the buffer was written"
    return None


def derivatives_failure() -> str | None:
    """Ask for derivatives: by backward through an op, forwards, and of what is compiled."""
    q, k, v = dense(9)
    required = q.clone().requires_grad_()
    calls: dict[str, Callable[[], object]] = {
        "q requires gradients": lambda: torch.func.grad(lambda q: autotune.attention(q, k, v).sum())(q),
        "q has a tangent": lambda: torch.func.jvp(lambda q: autotune.attention(q, k, v), (q,), (q,)),
        "q requires gradients, and": lambda: torch.compile(autotune.attention, backend="eager")(required, k, v),
    }
    for message, call in calls.items():
        try:
            call()
        except NotDifferentiableError as error:
            if str(error).startswith(message):
                continue
            return str(error)
        return f"{message}: not refused"
    return None


def inference_failure(backend: str | None) -> str | None:
    """Attend in inference mode, into a buffer from outside of it, with a parameter that has a gradient elsewhere."""
    with untuned(), torch.inference_mode():
        q, k, v = dense(20)
        weight = torch.nn.Parameter(q)
        with torch.inference_mode(False):
            out = torch.zeros(q.shape, dtype=HALF)
        call: Callable[..., Any] = ours if backend is None else compiled(ours, backend)[0]
        found = call(weight, k, v)
        autotune.attention(q, k, v, causal=True, out=out)
        if not found.is_inference() or out.is_inference() or not torch.equal(found, out):
            return "inference mode changes the result"
        return dense_failure((found,), q, k, v)


def captured_failure(how: str) -> str | None:
    """Capture decode in a CUDA graph, by itself or compiled; lengths, queries and pages then change under it."""
    tensors = paged((64, 64, 64), device="cuda")
    out = torch.empty_like(tensors["q"])
    call: Callable[..., Any] = autotune.paged_decode if how == "eager" else compiled(autotune.paged_decode, how)[0]
    call(**tensors, out=out)  # compiles, picks and binds
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(**tensors, out=out)
    for seed, lengths in enumerate(((33, 20, 64), (1, 0, 17), (64, 5, 48))):
        tensors["seq_lens"].copy_(torch.tensor(lengths))
        tensors["q"].copy_(draw(*out.shape, seed=seed, device="cuda"))
        tensors["page_table"].copy_(tensors["page_table"].roll(seed, 0))
        out.fill_(math.nan)
        graph.replay()
        if failure := decode_failure(out, tensors):
            return f"lengths {lengths}: {failure}"
    return None


def graph_trees_failure() -> str | None:
    """Compile decode so that torch captures it itself; lengths change from call to call."""

    def decode(tensors: dict[str, Any]) -> Any:
        return autotune.paged_decode(**tensors) * 1

    torch._dynamo.reset()
    call = torch.compile(decode, fullgraph=True, mode="reduce-overhead")
    for lengths in ((33, 20, 64), (1, 0, 17), (64, 5, 48), (64, 64, 64)):  # eager, captured, replayed
        tensors = paged(lengths, device="cuda")
        if failure := decode_failure(call(tensors).clone(), tensors):
            return f"lengths {lengths}: {failure}"
    return None
