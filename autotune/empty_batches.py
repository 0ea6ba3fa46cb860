"""Paged attention of no sequences, for which no kernel is picked: a call is checked as a kernel checks it."""

from collections.abc import Mapping
from typing import Any

import torch

from autotune.errors import InvalidShapeError
from autotune.kernels.known_calls import Result
from autotune.kernels.paged_cache.paged_kernel import BoundPaged
from autotune.kernels.tensors import check_offsets
from autotune.registry import get_operation
from autotune.shape import PagedShape
from autotune.space import Config


class BoundToNothing(BoundPaged):
    """A call over no sequences. It has no config, and launches nothing.

    Args:
        shape: the problem of one sequence.
        tensors: those of the call, by name.
    """

    def __init__(self, shape: PagedShape, tensors: Mapping[str, torch.Tensor]) -> None:
        queries = tuple(tensors["q"].shape)
        super().__init__(Config(), shape, lambda *tensors: None, queries, tuple(tensors), lambda *past: None)
        numbers = {"page_table": (0, None), "seq_lens": (0,), "cu_seqlens_q": (1,)}
        self._expected |= {name: (sizes, torch.int32) for name, sizes in numbers.items()}

    def __call__(
        self, tensors: dict[str, torch.Tensor], options: Mapping[str, Any], out: torch.Tensor | None
    ) -> Result:
        """Return results of no sequence: queries behind the last offset, if any, see no key."""
        return self._compute(tensors, options, out, check=options["check"])

    def _compute(self, *arguments: Any, check: bool = False) -> Result:
        tensors, options, out = arguments
        features = {name: options[name] for name in ("sinks", "alibi_slopes", "k_scale", "v_scale")}
        self._check(tensors, features, options["scale"], options["softcap"])
        self._check_out(out, tensors, features)
        q = tensors["q"]
        if check and "cu_seqlens_q" in tensors:
            check_offsets("cu_seqlens_q", tensors["cu_seqlens_q"], q.shape[0], "queries")
        if out is None:
            out = q.new_zeros((*q.shape[:-1], self._shape.head_dim_v))
        lse = q.new_full(q.shape[:-1], float("-inf"), dtype=torch.float32)
        return (out, lse) if options["return_lse"] else out


def attend_no_sequences(
    operation: str,
    shape: PagedShape,
    tensors: dict[str, torch.Tensor],
    options: Mapping[str, Any],
    out: torch.Tensor | None,
) -> Result:
    """Check a call of ``paged_decode`` or ``paged_prefill``, and return results of no sequence.

    Args:
        shape: the problem of one sequence.
        options: those of the call, but for ``out``.

    Raises:
        InputMismatchError, InvalidShapeError, NotDifferentiableError: as the function does.
    """
    if (problem := get_operation(operation).unsupported(shape)) is not None:
        raise InvalidShapeError(problem)
    return BoundToNothing(shape, tensors)(tensors, options, out)
