"""The command that tunes a shape, as its user would type it."""

from collections.abc import Mapping
from typing import Final

from autotune.shape import AttentionShape, PagedShape, Shape

# Fields whose option on the command line has another name.
OPTIONS: Final[Mapping[type[Shape], Mapping[str, str]]] = {
    AttentionShape: {"seq_q": "seq"},
    PagedShape: {"seq_q": "queries", "max_context": "context"},
}
FOLLOWS: Final = {
    "seq_kv": "seq_q",
    "mean_context": "max_context",
    "kv_dtype": "dtype",
}  # left out where they are equal


def tuning_command(operation: str, shape: Shape) -> str:
    """Return the command that searches a shape; for one that no options describe, the call in Python.

    Example:
        >>> tuning_command("flash_attention", AttentionShape(batch=1, heads=8, kv_heads=2, seq_q=512, head_dim=64))
        'autotune search --batch 1 --heads 8 --kv-heads 2 --seq 512 --head-dim 64 --dtype bfloat16 --no-causal'
    """
    fields = shape.as_dict()
    if type(shape) not in OPTIONS or fields["head_dim_v"] != fields["head_dim"]:
        return f"autotune.tune({shape!r}, operation={operation!r})"
    words = ["autotune", "search", *(() if operation == "flash_attention" else ("--operation", operation))]
    for name, value in fields.items():
        if name == "head_dim_v" or (name in FOLLOWS and value == fields[FOLLOWS[name]]):
            continue
        flag = OPTIONS[type(shape)].get(name, name).replace("_", "-")
        if name == "causal":
            words += [] if value else ["--no-causal"]
        elif value is True:
            words.append(f"--{flag}")
        elif value is not None and value is not False:
            words += [f"--{flag}", str(value)]
    return " ".join(words)
