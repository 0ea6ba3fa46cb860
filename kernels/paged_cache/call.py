"""What appending checks before anything is launched: that tokens, caches, slots and scales fit each other."""

import torch
import triton

from autotune.errors import InputMismatchError, NotDifferentiableError
from autotune.kernels.paged_cache.quantization import LARGEST

TOKEN_TYPES = (torch.float16, torch.bfloat16, torch.float32)


def check_append(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    layout: str,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> None:
    """Refuse what ``append`` cannot store; reads no tensor.

    Raises:
        InputMismatchError: sizes, types, strides or places that do not fit.
        NotDifferentiableError: gradients are required.
    """
    tensors = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "slots": slots}
    for (name, tensor), ndim in zip(tensors.items(), (3, 3, 4, 4, 1), strict=True):
        if tensor.ndim != ndim:
            raise InputMismatchError(f"{name} is {tuple(tensor.shape)}; expected {ndim} dimensions")
    tokens, kv_heads = k.shape[:2]
    page_size = k_cache.shape[1 if layout == "NHD" else 2]
    middle = (page_size, kv_heads) if layout == "NHD" else (kv_heads, page_size)
    cache_types = (k.dtype, *LARGEST)
    expected = {
        "k": (tuple(k.shape), TOKEN_TYPES),
        "v": ((tokens, kv_heads, v.shape[2]), (k.dtype,)),
        "k_cache": ((k_cache.shape[0], *middle, k.shape[2]), cache_types),
        "v_cache": ((k_cache.shape[0], *middle, v.shape[2]), (k_cache.dtype,)),
        "slots": ((tokens,), (torch.int64, torch.int32)),
    }
    for name, (sizes, dtypes) in expected.items():
        _check_tensor(name, tensors[name], sizes, dtypes)
    scales = {"k_scale": (k_scale, k_cache), "v_scale": (v_scale, v_cache)}
    for name, (scale, cache) in scales.items():
        _check_scale(name, scale, cache, kv_heads)
    _check_places(tensors | {name: scale for name, (scale, _) in scales.items() if scale is not None})


def check_slots(slots: torch.Tensor, *, pages: int, page_size: int) -> None:
    """Read the slots, and refuse those past the end of the cache; waits for the GPU.

    Raises:
        InputMismatchError: there is one.
    """
    wrong = (slots >= pages * page_size).nonzero().flatten().tolist()
    if wrong:
        raise InputMismatchError(
            f"slots[{wrong[0]}]={int(slots[wrong[0]])} is not in the cache; expected 0 to {pages * page_size - 1} for "
            f"{pages} pages of {page_size}, or a negative number to skip the token"
        )


def _check_tensor(name: str, tensor: torch.Tensor, sizes: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    if tuple(tensor.shape) != sizes or tensor.dtype not in dtypes:
        raise InputMismatchError(
            f"{name} is {tuple(tensor.shape)} {_name(tensor.dtype)}; expected {sizes} {' or '.join(map(_name, dtypes))}"
        )
    if name != "slots" and tensor.numel() and tensor.stride(-1) != 1:
        raise InputMismatchError(f"{name} has the strides {tensor.stride()}; expected 1 in the last dimension")


def _check_scale(name: str, scale: torch.Tensor | None, cache: torch.Tensor, kv_heads: int) -> None:
    """Refuse the scale of a cache that is not quantized, none of int8, and another than the cache's type has."""
    if scale is None and cache.dtype != torch.int8:
        return
    allowed: list[tuple[int, ...]] = []
    if cache.dtype in LARGEST:
        allowed = [tuple(cache.shape[:3])] if cache.dtype == torch.int8 else [(), (kv_heads,)]
    if scale is None or tuple(scale.shape) not in allowed or scale.dtype != torch.float32:
        state = "None" if scale is None else f"{tuple(scale.shape)} {_name(scale.dtype)}"
        wanted = f"float32 of {' or '.join(map(str, allowed))}" if allowed else "None"
        raise InputMismatchError(f"{name} is {state}; expected {wanted} for a cache of {_name(cache.dtype)}")


def _check_places(tensors: dict[str, torch.Tensor]) -> None:
    """Refuse tensors of several devices or of none that runs kernels, and gradients."""
    device = tensors["k_cache"].device
    elsewhere = [f"{name} on {tensor.device}" for name, tensor in tensors.items() if tensor.device != device]
    if elsewhere:
        raise InputMismatchError(f"k_cache is on {device}, {', '.join(elsewhere)}; expected one device")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors.values()):
        raise NotDifferentiableError("an input requires gradients, which a cache keeps none of; use torch.no_grad()")
    if device.type == "cpu" and not triton.knobs.runtime.interpret:
        raise InputMismatchError("the tensors are on the CPU; expected a GPU (or TRITON_INTERPRET=1, to check numbers)")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
