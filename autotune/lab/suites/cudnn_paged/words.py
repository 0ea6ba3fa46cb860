"""The columns of the tables of the cuDNN notebook, and what is said below them."""

from typing import Final

from autotune import sheets

ATOL: Final = 5e-3
RTOL: Final = 3e-3

COLUMNS: Final = (
    sheets.text("implementation"),
    sheets.number("queries"),
    sheets.timing(),
    sheets.number("error", ".1e"),
    sheets.text(f"within {ATOL:g} + {RTOL:g} |SDPA|"),
    sheets.size("extra memory"),
)
GRAPH_COLUMNS: Final = (sheets.text("frontend"), sheets.text("result"))
GRAPH_TITLE: Final = "cuDNN's graph, built and validated by its frontend"
PLANS: Final = "plans need cuDNN 9.5 and a GPU from sm_80 on"
REFERENCE: Final = "error: the largest one against torch's SDPA in float32, causal; pages lie in random order"
ON_CPU: Final = (
    "reduced: cuDNN needs an NVIDIA GPU, so Gaudi's PagedAttentions stand in its place, which are plain torch and take "
    "one query a sequence, the last, that sees all keys"
)
