"""Uniform registers that a binary reads and nothing has written: how ptxas 12.8 miscompiles some loops over wgmma.

Where two tiles lie at one address of shared memory in different swizzles, their matrix descriptors share the low half
and differ in the high one. ptxas then adds to a register that it never loaded, so that wgmma multiplies what lies
anywhere. Of the tiles that gave wrong numbers on an H200 in November 2026 (``bounds.padded_widths``) the binaries do.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import triton

CUOBJDUMP: Final = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
INSTRUCTION: Final = re.compile(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Zx0-9_.]+)\s*([^;]*);")
REGISTER: Final = re.compile(r"\bUR(\d+)")
DESCRIPTORS: Final = re.compile(r"gdesc\[UR(\d+)\]")
WRITES: Final = ("U", "R2UR", "S2UR", "CS2UR", "VOTEU", "REDUX")
READS_ALONE: Final = ("UTMA", "UBLK", "UISETP", "UPLOP", "UCGABAR")


def unwritten_registers(cubin: bytes, folder: Path) -> list[str]:
    """Return the instructions for sm_90 that read a uniform register which none at a lower address writes."""
    path = folder / f"{os.getpid()}.cubin"
    path.write_bytes(cubin)
    text = subprocess.run([CUOBJDUMP, "-sass", path], capture_output=True, text=True, check=True).stdout
    path.unlink()
    written: set[int] = set()
    found = []
    for match in INSTRUCTION.finditer(text):
        name, operands = match[1], [each.strip() for each in match[2].split(",")]
        target = _target(name, operands)
        sources = [each for number, each in enumerate(operands) if number != target]
        if not written.issuperset(_read(sources)):
            found.append(f"{name} {match[2].strip()}")
        if target is not None:
            first = int(operands[target].removeprefix("UR"))
            written.update(range(first, first + (2 if ".64" in name or "WIDE" in name else 1)))
    return found


def _target(name: str, operands: list[str]) -> int | None:
    """Return the place of the uniform register that an instruction writes, past a predicate; None where it has none."""
    if not name.startswith(WRITES) or name.startswith(READS_ALONE):
        return None
    place = 1 if re.fullmatch(r"UP\w+", operands[0]) and len(operands) > 1 else 0
    return place if re.fullmatch(r"UR\d+", operands[place]) else None


def _read(sources: list[str]) -> Iterator[int]:
    """Yield the registers that operands name; of two descriptors the first is not read of a tile in registers."""
    for source in sources:
        if (descriptors := DESCRIPTORS.fullmatch(source.partition(".tnsp")[0])) is not None:
            first = int(descriptors[1])
            is_in_registers = sum(bool(re.fullmatch(r"R\d+", each)) for each in sources[: sources.index(source)]) > 1
            yield from range(first + 2 * is_in_registers, first + 4)
        else:
            yield from (int(each) for each in REGISTER.findall(source))
