"""FlashInfer's attention over paged latents (MLA), where flashinfer-python is installed.

Names and arguments are those of the sources of flashinfer-python (``flashinfer/mla.py`` of commit 00e3d68). Not run on
a GPU yet; it was tested against a stand-in with its signatures.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from autotune.errors import BaselineUnavailableError
from autotune.kernels.baselines import baseline
from autotune.kernels.baselines.flash_infer import DEVICE, DTYPES, INSTALL, list_pages
from autotune.shape import PagedShape

if TYPE_CHECKING:
    from autotune.kernels.paged_decode.inputs import Inputs

WIDTHS: Final = (576, 512)  # of DeepSeek's latents
WORKSPACE_BYTES: Final = 128 * 2**20  # the size that its documentation recommends


class FlashInferLatent:
    """FlashInfer's ``BatchMLAPagedAttentionWrapper`` over a ``PagedShape`` of latents, planned once.

    A call follows the values of its tensors, but for page table and lengths, which are read when it is prepared. The
    two parts of queries and of the cache are views: nothing is copied.
    """

    name: Final = "flashinfer mla"
    is_usual: Final = False
    verified_on_hardware: Final = False

    def available(self) -> str | None:
        return baseline.missing_module("flashinfer.mla", INSTALL) or baseline.missing_nvidia_gpu(self.name)

    def unsupported(self, shape: Any) -> str | None:
        if (reason := baseline.wrong_shape(self.name, shape, (PagedShape,), DTYPES)) is not None:
            return reason
        if (shape.head_dim, shape.head_dim_v) != WIDTHS:
            return f"head_dim={shape.head_dim}, head_dim_v={shape.head_dim_v}: {self.name} takes 576/512"
        if (reason := baseline.missing_full_mask(self.name, shape)) is not None:
            return reason
        if shape.window is not None:
            return f"window={shape.window}: {self.name} has none"
        return baseline.missing_feature(self.name, shape, "softcap", "sinks", "alibi")

    def prepare(self, shape: PagedShape, inputs: "Inputs") -> Callable[[], torch.Tensor]:
        """Return a call that returns a new tensor, ``[B, S_q, H, D_v]``; compiles its kernels where they are new."""
        baseline.refuse_unless_ready(self, shape)
        baseline.refuse_elsewhere(self.name, inputs.q, DEVICE)
        if inputs.q.ndim != 4:
            raise BaselineUnavailableError(f"q is {tuple(inputs.q.shape)}, packed: {self.name} takes [B, S_q, H, D]")
        with baseline.refusals_of(self.name):
            run = self._bind(shape, inputs)
            run()
        return run

    def _bind(self, shape: PagedShape, inputs: "Inputs") -> Callable[[], torch.Tensor]:
        flashinfer: Any = importlib.import_module("flashinfer.mla")
        q, width = inputs.q, shape.head_dim_v
        latents = inputs.k_cache.squeeze(2 if inputs.layout == "NHD" else 1)  # [pages, page_size, 576]
        room = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
        wrapper = flashinfer.BatchMLAPagedAttentionWrapper(room)
        pages = list_pages(inputs.page_table, inputs.seq_lens, page_size=shape.page_size)
        offsets = baseline.offsets_of(torch.full_like(inputs.seq_lens, shape.seq_q))
        wrapper.plan(
            *(offsets, pages.indptr, pages.indices, inputs.seq_lens),
            *(shape.heads, width, shape.head_dim - width, shape.page_size),
            *(shape.seq_q > 1, inputs.scale, q.dtype, latents.dtype),
        )
        rows = q.flatten(0, 1)

        def run() -> torch.Tensor:
            out: torch.Tensor = wrapper.run(
                *(rows[..., :width], rows[..., width:], latents[..., :width], latents[..., width:])
            )
            return out.reshape(*q.shape[:3], width)

        return run
