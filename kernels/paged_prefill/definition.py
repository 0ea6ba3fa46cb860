"""Paged prefill on tensors: random inputs, outputs, and the reference that defines what is correct."""

from typing import Final

from autotune.kernels.paged_decode.definition import PagedDecode
from autotune.kernels.paged_prefill.inputs import check_shapes, make_inputs
from autotune.kernels.paged_prefill.reference import paged_prefill_reference


class PagedPrefill(PagedDecode):
    """Implements ``autotune.operation.Definition`` for ``PagedShape``, with queries and outputs ``[T, H, D]``."""

    make_inputs = staticmethod(make_inputs)
    check_shapes = staticmethod(check_shapes)
    _attend = staticmethod(paged_prefill_reference)


DEFINITION: Final = PagedPrefill()
