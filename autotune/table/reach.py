"""Asks a place whether it answers, and lets itself be written to, once and within seconds, before work depends on it.

Clients of object stores try an address that does not answer for minutes, and no call of theirs can be ended: a process
asks, which is ended instead.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from autotune.errors import TableError
from autotune.table.remote import LocalFolder, open_folder, title_of

ANSWER_SECONDS: Final = 20.0
ASKED: Final = ".asked"  # hidden, so that no other listing has it
ADVICE: Final = "check the address, its port and region, and the network"


def require_reachable(place: str | Path, *, writable: bool = False) -> None:
    """Refuse a place that does not answer, cannot be listed or, where that is asked, cannot be written to.

    Raises:
        TableError: the reason, with the place but without the credentials that a URI may hold.
    """
    text = str(place)
    if "://" not in text or text.startswith("file://"):
        _ask(text, writable=writable)
        return
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-P", "-m", __name__, "write" if writable else "list"]
    try:
        # The URI is no argument, which every user of a machine can read.
        ran = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            env={**os.environ, "PYTHONPATH": paths},
        )
    except subprocess.TimeoutExpired:
        reason = f"does not answer within {ANSWER_SECONDS:.0f} s; {ADVICE}"
    else:
        if ran.returncode == 0:
            return
        reason = ran.stdout.strip() or f"cannot be asked: the process that did ended with {ran.returncode}"
    title = title_of(text)
    raise TableError(reason if reason.startswith(title) else f"{title}: {reason}")


def _ask(place: str, *, writable: bool) -> None:
    folder = open_folder(place)
    if isinstance(folder, LocalFolder) and folder.root.is_file():
        raise TableError(f"{folder}: is a file; expected a folder, which is made where there is none")
    if writable:
        folder.write(f"{ASKED}/probe", b"")
    folder.list(ASKED)


if __name__ == "__main__":
    try:
        _ask(sys.stdin.read(), writable=sys.argv[1] == "write")
    except TableError as _error:
        print(" ".join(str(_error).split()))
        sys.exit(1)
