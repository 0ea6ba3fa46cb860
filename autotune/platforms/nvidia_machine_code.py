"""Machine code of NVIDIA's GPUs as text, and the spills in its steady loops."""

import re
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from autotune.errors import MissingDependencyError

STEADY: Final = 1.1  # times the instructions of the shortest loop: masks take more
PRODUCTS: Final = (re.compile(r"\b[HIQDO]G?MMA"), re.compile(r"\bFFMA"))  # of tensor cores, or else without
SPILL: Final = re.compile(r"\b(?:LDL|STL)\b")
INSTRUCTION: Final = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
BRANCH: Final = re.compile(r"\bBRA\b.*?0x([0-9a-f]+)")


def disassembled(cubin: bytes) -> str:
    """Return the machine's code of a binary as text, by the tool that this process' Triton brings along.

    Raises ``MissingDependencyError`` where Triton is not installed.
    """
    found = find_spec("triton")
    if found is None or found.origin is None:
        raise MissingDependencyError("triton is not installed, whose cuobjdump reads machine code")
    tool = Path(found.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout


def innermost_loops(code: str) -> list[list[str]]:
    """Return the instructions of each loop that holds no other."""
    lines = [(int(address, 16), text) for address, text in INSTRUCTION.findall(code)]
    branches = ((BRANCH.search(text), address) for address, text in lines)
    loops = [(int(found[1], 16), address) for found, address in branches if found and int(found[1], 16) < address]
    innermost = [
        loop
        for loop in loops
        if not any(loop[0] <= low and high <= loop[1] and (low, high) != loop for low, high in loops)
    ]
    return [[text for address, text in lines if low <= address <= high] for low, high in innermost]


def steady_loops(code: str) -> list[list[str]]:
    """Return the instructions of the loops that every row sees: the shortest with products.

    Without such a loop, as where one step does it all, that is the whole code.
    """
    loops = innermost_loops(code)
    with_products = ([body for body in loops if any(map(product.search, body))] for product in PRODUCTS)
    bodies = next(filter(None, with_products), [[text for _, text in INSTRUCTION.findall(code)]])
    longest = STEADY * min(map(len, bodies))
    return [body for body in bodies if len(body) <= longest]


def steady_spills(code: str) -> int:
    """Count the loads and stores of spilled values in the steady loops."""
    return sum(SPILL.search(text) is not None for body in steady_loops(code) for text in body)
