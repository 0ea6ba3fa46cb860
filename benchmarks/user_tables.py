"""Tables that ``get_kernel`` reads while a benchmark runs: those that ship and those of a folder, not the user's."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.dispatch import reload


@contextmanager
def tables_in(folder: Path | None = None) -> Iterator[Path]:
    """Let a folder stand for the user's tables, an empty one by default; then let these stand again."""
    before = os.environ.get("AUTOTUNE_HOME")
    with tempfile.TemporaryDirectory() as empty:
        place = Path(empty) if folder is None else folder
        os.environ["AUTOTUNE_HOME"] = str(place)
        reload()
        try:
            yield place
        finally:
            if before is None:
                del os.environ["AUTOTUNE_HOME"]
            else:
                os.environ["AUTOTUNE_HOME"] = before
            reload()
