"""Inputs that strain a softmax: magnitudes, noise, one large token, all elements equal."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch

from autotune.errors import UnknownNameError, UsageError

TENSORS: Final = ("q", "k", "v", "k_cache", "v_cache")  # of dense inputs, and of paged ones
NOISE: Final = 0.1
OUTLIER: Final = 100.0
EQUAL: Final = 1.0


def disturb(inputs: Any, case: str, *, seed: int = 0) -> Any:
    """Return a copy of a kernel's inputs, changed as the case says, in the same dtypes; ``CASES`` lists the cases.

    Slots of a paged cache that hold no token stay as they are. UnknownNameError for another case; UsageError for a
    quantized cache, whose elements mean nothing without their scales, and for inputs without the usual tensors.

    Example:
        >>> disturb(DEFINITION.make_inputs(shape, seed=0, device="cpu"), "times 100").q.abs().max() > 100
        tensor(True)
    """
    if case not in CASES:
        raise UnknownNameError(f"case={case!r} is unknown; allowed: {', '.join(CASES)}")
    names = [name for name in TENSORS if hasattr(inputs, name)]
    if not names:
        raise UsageError(f"inputs={type(inputs).__name__} has none of {', '.join(TENSORS)}")
    for name in names:
        dtype = getattr(inputs, name).dtype
        if dtype.itemsize == 1:
            raise UsageError(f"{name} is {dtype}: disturbed inputs are of 16 or 32 bits, expected kv_dtype as dtype")
    return CASES[case](inputs, names, seed)


def _times(factor: float) -> Callable[[Any, list[str], int], Any]:
    def scale(inputs: Any, names: list[str], seed: int) -> Any:
        return replace(inputs, **{name: getattr(inputs, name) * factor for name in names})

    return scale


def _add_noise(inputs: Any, names: list[str], seed: int) -> Any:
    generator = torch.Generator(device=inputs.q.device).manual_seed(seed)

    def noisy(tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(tensor.shape, generator=generator, device=tensor.device)
        return (tensor.float() + NOISE * noise).to(tensor.dtype)

    return replace(inputs, **{name: noisy(getattr(inputs, name)) for name in names})


def _make_equal(inputs: Any, names: list[str], seed: int) -> Any:
    def equal(tensor: torch.Tensor) -> torch.Tensor:
        return torch.where(tensor.isnan(), tensor, EQUAL)  # NaN: no token

    return replace(inputs, **{name: equal(getattr(inputs, name)) for name in names})


def _enlarge_token(inputs: Any, names: list[str], seed: int) -> Any:
    """Enlarge the middle key and value of every sequence and, of dense inputs, the query at their position."""
    if "k" not in names:
        return replace(inputs, **{name: _enlarge_slots(inputs, getattr(inputs, name)) for name in names[1:]})
    seq_q, seq_kv = inputs.q.shape[1], inputs.k.shape[1]
    middle = {"q": seq_q // 2, "k": max(0, seq_q // 2 + seq_kv - seq_q)}
    found = {}
    for name in names:
        tensor = getattr(inputs, name).clone()
        tensor[:, middle.get(name, middle["k"])] *= OUTLIER
        found[name] = tensor
    return replace(inputs, **found)


def _enlarge_slots(inputs: Any, cache: torch.Tensor) -> torch.Tensor:
    cache = cache.clone()
    slots = cache if inputs.layout == "NHD" else cache.transpose(1, 2)  # [pages, page_size, H_kv, D]
    has_token = (inputs.seq_lens > 0).nonzero()[:, 0]
    position = inputs.seq_lens[has_token].long() // 2
    page = inputs.page_table[has_token, position // slots.shape[1]].long()
    slots[page, position % slots.shape[1]] *= OUTLIER
    return cache


CASES: Final[dict[str, Callable[[Any, list[str], int], Any]]] = {
    "normal": _times(1.0),
    "times 0.1": _times(0.1),
    "times 10": _times(10.0),
    "times 100": _times(100.0),
    "noisy": _add_noise,
    "outlier token": _enlarge_token,
    "all equal": _make_equal,
}
