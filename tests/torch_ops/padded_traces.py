"""Padded batches inside torch: compiled, mapped, cast and without values."""

from typing import Any

import torch

import autotune
from tests.torch_ops.calls import HALF, dense, op_of, untuned

LENS = ((9, 4), (7, 9), (2, 0))  # of queries, of keys, and where those begin


def numbers(device: str = "cpu") -> dict[str, Any]:
    names = ("q_lens", "kv_lens", "kv_starts")
    return {name: torch.tensor(each, dtype=torch.int32, device=device) for name, each in zip(names, LENS, strict=True)}


def attend(given: dict[str, Any], *tensors: torch.Tensor) -> Any:
    return autotune.attention(*tensors, causal=True, return_lse=True, **given)


def opcheck_failure(form: str) -> str | None:
    """Ask torch about an op of a padded batch."""
    q, k, v = dense(9)
    options = {"causal": True, "window": None, "softcap": None, "scale": None, **numbers(), "check": False}
    options |= {"attn_mask": None, "sinks": None, "kv_ends": None}
    buffer = (torch.zeros_like(q),) if "_out" in form else ()
    with untuned():
        found = torch.library.opcheck(op_of(f"attention{form}"), (*buffer, q, k, v, *options.values()))
    return None if set(found.values()) == {"SUCCESS"} else str(found)


def compiled_failure(backend: str) -> str | None:
    """Compile a padded batch: the bits, the sizes and the strides of an eager call."""
    torch._dynamo.reset()
    with untuned(), torch.no_grad():
        call = torch.compile(attend, backend=backend, fullgraph=True)
        for batch in (2, 4):
            tensors = dense(9, batch=batch)
            given = {name: each.repeat(batch // 2) for name, each in numbers().items()}
            expected = attend(given, *tensors)
            for one, other in zip(call(given, *tensors), expected, strict=True):
                if not torch.equal(one, other) or one.stride() != other.stride():
                    return f"batch of {batch}: compiled it differs"
    return None


def mapped_failure() -> str | None:
    """Map over padded batches whose numbers are mapped, and over those that share them."""
    with untuned(), torch.no_grad():
        q, k, v = (torch.stack([each, each.flip(0)]) for each in dense(9))
        given = numbers()
        each_its_own = {name: torch.stack([each, each.flip(0)]) for name, each in given.items()}
        for mapped, place in ((given, None), (each_its_own, 0)):
            found = torch.vmap(attend, (place, 0, 0, 0))(mapped, q, k, v)
            for index in range(2):
                own = given if place is None else {name: each[index] for name, each in mapped.items()}
                if not all(
                    map(torch.equal, (each[index] for each in found), attend(own, q[index], k[index], v[index]))
                ):
                    return f"mapped along {place}: problem {index} differs"
    return None


def autocast_failure() -> str | None:
    """Cast queries, keys and values, and no number."""
    with untuned(), torch.no_grad():
        tensors = dense(9)
        with torch.autocast("cpu", dtype=HALF):
            found = attend(numbers(), *(each.float() for each in tensors))
        return None if all(map(torch.equal, found, attend(numbers(), *tensors))) else "cast it differs"
