"""Attention with a mask and sinks inside torch: compiled, mapped, cast and without values."""

from typing import Any

import torch

import autotune
from tests.torch_ops.calls import HALF, HEADS, dense, draw, op_of, untuned

SEQ = 9


def operands(device: str = "cpu", *, batch: int = 2) -> dict[str, torch.Tensor]:
    """Return a bias of each head and sequence, sinks, and ends of two keys more than causality lets see."""
    bias = draw(batch, HEADS, SEQ, SEQ, seed=20)
    ends = torch.arange(1, SEQ + 1, dtype=torch.int32).repeat(batch, 1) + 2
    found = {"attn_mask": bias, "sinks": draw(HEADS, seed=21, dtype=torch.float32), "kv_ends": ends}
    return {name: each.to(device) for name, each in found.items()}


def attend(given: dict[str, Any], *tensors: torch.Tensor) -> Any:
    return autotune.attention(*tensors, causal=True, return_lse=True, **given)


def opcheck_failure(form: str) -> str | None:
    """Ask torch about an op with operands."""
    q, k, v = dense(SEQ)
    names = ("q_lens", "kv_lens", "kv_starts")
    options: dict[str, Any] = {"causal": True, "window": None, "softcap": None, "scale": None}
    options |= {**dict.fromkeys(names), "check": False, **operands()}
    buffer = (torch.zeros_like(q),) if "_out" in form else ()
    with untuned():
        found = torch.library.opcheck(op_of(f"attention{form}"), (*buffer, q, k, v, *options.values()))
    return None if set(found.values()) == {"SUCCESS"} else str(found)


def compiled_failure(backend: str) -> str | None:
    """Compile a call with operands: the bits, the sizes and the strides of an eager one."""
    torch._dynamo.reset()
    with untuned(), torch.no_grad():
        call = torch.compile(attend, backend=backend, fullgraph=True)
        for batch in (2, 4):
            tensors, given = dense(SEQ, batch=batch), operands(batch=batch)
            expected = attend(given, *tensors)
            for one, other in zip(call(given, *tensors), expected, strict=True):
                if not torch.equal(one, other) or one.stride() != other.stride():
                    return f"batch of {batch}: compiled it differs"
    return None


def mapped_failure() -> str | None:
    """Map over problems that share a mask, of one sequence or of all, and over those that have their own."""
    with untuned(), torch.no_grad():
        q, k, v = (torch.stack([each, each.flip(0)]) for each in dense(SEQ))
        bias = operands()["attn_mask"]
        for mask, place in ((bias, None), (bias[:1], None), (torch.stack([bias, bias.flip(1)]), 0),
                            (torch.stack([bias[:1], bias[1:]]), 0)):  # fmt: skip
            found = torch.vmap(attend, ({"attn_mask": place}, 0, 0, 0))({"attn_mask": mask}, q, k, v)
            for index in range(2):
                own = {"attn_mask": mask if place is None else mask[index]}
                expected = attend(own, q[index], k[index], v[index])
                if not all(map(torch.equal, (each[index] for each in found), expected)):
                    return f"mask of {tuple(mask.shape)} mapped along {place}: problem {index} differs"
        own_ends = torch.stack([operands()["kv_ends"], operands()["kv_ends"] + 3])
        found = torch.vmap(attend, ({"kv_ends": 0}, 0, 0, 0))({"kv_ends": own_ends}, q, k, v)
        for index in range(2):
            expected = attend({"kv_ends": own_ends[index]}, q[index], k[index], v[index])
            if not all(map(torch.equal, (each[index] for each in found), expected)):
                return f"mapped ends: problem {index} differs"
    return None


def autocast_failure() -> str | None:
    """Cast queries, keys and values, and a mask of another 16 bits; one of fp32 keeps its bits."""
    with untuned(), torch.no_grad():
        tensors, given = dense(SEQ), operands()
        exact = given | {"attn_mask": given["attn_mask"].float() + 1e-4}
        with torch.autocast("cpu", dtype=HALF):
            found = [attend(each, *(tensor.float() for tensor in tensors)) for each in (given, exact)]
            other = attend(given | {"attn_mask": given["attn_mask"].bfloat16()}, *tensors)
        rounded = attend(given | {"attn_mask": given["attn_mask"].bfloat16().half()}, *tensors)
        pairs = zip((*found, other), (attend(given, *tensors), attend(exact, *tensors), rounded), strict=True)
        return None if all(all(map(torch.equal, *pair)) for pair in pairs) else "cast it differs"
