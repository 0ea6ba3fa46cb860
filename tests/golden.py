"""Golden files: the printed text of a command, pinned in one file a command.

    AUTOTUNE_GOLDEN=write python -m pytest tests -k golden

writes them anew; read the difference before it is committed.
"""

import difflib
import os
from pathlib import Path


def assert_golden(path: Path, text: str) -> None:
    """Compare printed text with its golden file; lines are compared without the spaces at their ends."""
    printed = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    if os.environ.get("AUTOTUNE_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(printed)
    assert path.exists(), f"{path} is missing; AUTOTUNE_GOLDEN=write writes it"
    pinned = path.read_text()
    changes = "\n".join(difflib.unified_diff(pinned.splitlines(), printed.splitlines(), lineterm="", n=0))
    assert printed == pinned, f"{path} differs; AUTOTUNE_GOLDEN=write writes it anew\n{changes}"
