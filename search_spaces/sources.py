"""Files that the kernels of this package are made of."""

from pathlib import Path
from typing import Final

from autotune import rounding

KERNELS: Final = Path(__file__).parents[1] / "kernels"
# What the launches of all kernels in Triton may reach.
SHARED: Final = (
    *sorted((KERNELS / "tiles").glob("*.py")),
    Path(__file__).parent / "bounds.py",
    Path(rounding.__file__),
)


def kernel_files(folder: str, *names: str) -> tuple[Path, ...]:
    """Return the files of those modules in a folder of kernels."""
    return tuple(KERNELS / folder / f"{name}.py" for name in names)
