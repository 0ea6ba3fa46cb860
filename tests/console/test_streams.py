"""Standard output that is closed before Python starts."""

import os
import subprocess
import sys
from pathlib import Path


def test_a_closed_output_is_never_the_descriptor_of_another_file(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from autotune.console import streams\n"
        "streams.outlive_readers()\n"
        f"file = open({str(tmp_path / 'table')!r}, 'w')\n"
        "print('a line', flush=True)\n"
        "sys.exit(file.fileno())\n"
    )
    command = f"exec {sys.executable} -c '{code.replace(chr(39), chr(34))}' >&- 2>&-"
    done = subprocess.run(["bash", "-c", command], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode > 2
    assert (tmp_path / "table").read_bytes() == b""
