"""Dtypes of queries and of caches: torch's names, their sizes, and the short forms that a caller may give."""

from typing import TYPE_CHECKING, Final

from autotune.errors import UnknownNameError

if TYPE_CHECKING:
    import torch

ITEM_BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4, "float8_e4m3fn": 1}
QUERY_DTYPES: Final = (
    "float16",
    "bfloat16",
    "float32",
)  # of queries of a paged cache, and of all tensors of dense ones
QUANTIZED_DTYPES: Final = ("float8_e4m3fn",)  # that dense tensors may have, too; their results have bfloat16
DENSE_DTYPES: Final = QUERY_DTYPES + QUANTIZED_DTYPES
DTYPE_ALIASES: Final = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "float": "float32"}

# What a paged cache may hold: the types of queries, or one byte an element.
KV_ITEM_BYTES: Final = {**ITEM_BYTES, "float8_e5m2": 1, "int8": 1}
KV_DTYPE_ALIASES: Final = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


def parse_dtype(dtype: "str | torch.dtype") -> str:
    """Return torch's name of a dtype, given that name or a short form (``"bf16"``) in any case, or torch's own dtype.

    Raises:
        UnknownNameError: no such dtype of queries.
    """
    return _parse_name("dtype", dtype, DTYPE_ALIASES, list(QUERY_DTYPES))


def parse_dense_dtype(dtype: "str | torch.dtype") -> str:
    """Parse the dtype of dense tensors as ``parse_dtype`` does; ``"float8_e4m3fn"``, ``"fp8"`` for short, is one."""
    fp8 = {short: name for short, name in KV_DTYPE_ALIASES.items() if name in QUANTIZED_DTYPES}
    return _parse_name("dtype", dtype, DTYPE_ALIASES | fp8, list(DENSE_DTYPES))


def parse_kv_dtype(dtype: "str | torch.dtype", *, field: str = "kv_dtype") -> str:
    """Parse the dtype of a cache as ``parse_dtype`` does, its errors of ``field``; one-byte types are allowed too."""
    return _parse_name(field, dtype, DTYPE_ALIASES | KV_DTYPE_ALIASES, list(KV_ITEM_BYTES))


def _parse_name(field: str, given: object, aliases: dict[str, str], names: list[str]) -> str:
    """Resolve an alias; the error lists each name once, with its aliases."""
    if type(given) is str and given in names:
        return given
    spelled = str(given).removeprefix("torch.").lower()
    name = aliases.get(spelled, spelled)
    if name not in names:
        short = {name: [alias for alias, meant in aliases.items() if meant == name] for name in names}
        allowed = ", ".join(name + (f" ({', '.join(short[name])})" if short[name] else "") for name in names)
        raise UnknownNameError(f"{field}={given!r} is unknown; allowed: {allowed}")
    return name
