"""Operators of torchvision, which SGLang imports: its wheel has none where torch is built for CPUs.

Importing this module declares them, without a kernel, as torchvision wants to find them; nothing where SGLang is not
installed, or torchvision's own load.
"""

from importlib.util import find_spec
from typing import Final

import torch

OPERATORS: Final = (
    *("nms", "qnms", "roi_align", "qroi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d"),
    *("_roi_align_backward", "_ps_roi_align_backward", "_roi_pool_backward", "_ps_roi_pool_backward"),
    "_deform_conv2d_backward",
)


def declare() -> torch.library.Library | None:
    """Return the library that declares the operators, for as long as it is held."""
    if find_spec("sglang") is None or torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in OPERATORS:
        library.define(f"{name}(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
    return library


LIBRARY: Final = declare()
