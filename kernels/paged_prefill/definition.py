"""Paged prefill on tensors: random inputs, outputs, and the reference that defines what is correct."""

from typing import Final

from autotune.kernels.paged_decode.definition import PagedDecode
from autotune.kernels.paged_decode.inputs import Inputs
from autotune.kernels.paged_prefill.inputs import check_shapes, make_inputs
from autotune.kernels.paged_prefill.reference import paged_prefill_reference


class PagedPrefill(PagedDecode):
    """Implements ``autotune.operation.Definition`` for ``PagedShape``, with queries and outputs ``[T, H, D]``."""

    make_inputs = staticmethod(make_inputs)
    check_shapes = staticmethod(check_shapes)
    _attend = staticmethod(paged_prefill_reference)

    def statistic_slack(self, inputs: Inputs) -> float:
        """Return 0: keys of any type are multiplied by queries of 16 bits that are not split."""
        return 0.0


DEFINITION: Final = PagedPrefill()
