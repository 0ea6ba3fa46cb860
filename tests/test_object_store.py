"""A local S3 server, a run full of failures, and not one credential in anything that leaves the processes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from autotune.table import Store
from tests import sample

pytestmark = pytest.mark.slow

KEY: Final = "AKIAVERYPRIVATEKEY77"
SECRET: Final = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzzHIDDENKEY"
QUOTED: Final = "wJalrXUtnFEMI%2FK7MDENG%2BbPxRfiCYzzHIDDENKEY"
TOKEN: Final = "FwoGZXIvYXdzEHIDDENTOKEN4242"
PIECES: Final = (KEY, SECRET, QUOTED, TOKEN, "HIDDENKEY", "wJalrXUtnFEMI")

# A program of the user's: it prints every error with its whole traceback, tunes, and ends with an unforeseen error.
PROGRAM: Final = """
import logging, os, sys, traceback
from datetime import UTC, datetime
from pathlib import Path
import autotune
from autotune.grid import Attempt, AttemptEnd, GridPlace
from autotune.table import Store

if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG)
    good, *bad = os.environ["TEST_URIS"].split()
    begun = datetime.now(UTC)
    place = GridPlace(good)
    place.begin(Attempt(task="ab12", number=1, token="f0", host="node", device="NVIDIA H200", power_cap_watts=700.0,
                        toolchain="triton", started=begun))
    message = ""
    for uri in bad:
        for act in (lambda: autotune.pull_tables(uri), lambda: GridPlace(uri).folder.write("a", b"a")):
            try:
                act()
            except autotune.AutotuneError as error:
                message += f"{error} ({uri}); "
                traceback.print_exc()
                print(repr(error), repr(error.__context__), repr(error.__cause__))
    assert message
    place.end(AttemptEnd(task="ab12", token="f0", state="failed", seconds=1.0, message=message))
    print(place, place.records(), place.folder.list("tables"))
    autotune.pull_tables(good)
    autotune.reload()
    shape = autotune.AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
    print(autotune.get_kernel(shape, device="NVIDIA H200").provenance)
    print(autotune.tune(shape, store=Store(Path(sys.argv[1])), device="NVIDIA H200", trials=2, budget=30))
    print(autotune.tables_digest())
"""


@dataclass
class Watcher:
    """The command lines of all processes below one, as long as it watches."""

    parent: int
    seen: set[str] = field(default_factory=set)
    is_over: bool = False

    def watch(self) -> None:
        while not self.is_over:
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                    if parent == self.parent:
                        self.seen.add((folder / "cmdline").read_text())
                except (OSError, ValueError, IndexError):
                    continue
            time.sleep(0.05)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Yield the address of an S3 server on this machine."""
    server_module = pytest.importorskip("moto.server")
    threaded = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    threaded.start()
    host, port = threaded.get_host_and_port()
    yield f"{host}:{port}"
    threaded.stop()


@pytest.fixture(scope="module")
def uris(server: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Fill a bucket with a grid's place; return its URI, and others that fail in one way each."""
    from pyarrow import fs

    named = {"access_key": "any", "secret_key": "any", "scheme": "http", "region": "us-east-1"}
    store = fs.S3FileSystem(endpoint_override=server, allow_bucket_creation=True, **named)
    store.create_dir("fleet")
    local = Store(tmp_path_factory.mktemp("fleet"))
    (part,) = local.append([sample.trial()])
    for name, data in (("whole", part.read_bytes()), ("damaged", b"PAR1")):
        with store.open_output_stream(f"fleet/{name}/tables/{part.relative_to(local.root).as_posix()}") as file:
            file.write(data)
    query = f"scheme=http&region=us-east-1&endpoint_override={server}"
    secret = f"s3://{KEY}:{QUOTED}@"
    return [
        f"{secret}fleet/whole?{query}",
        f"{secret}fleet/damaged?{query}",
        f"{secret}absent/whole?{query}",
        f"{secret}fleet/whole?{query}&session_token={TOKEN}",  # which pyarrow does not take
        f"{secret}fleet/whole?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:1",
        f"s3://{KEY}:{SECRET}@fleet/whole?{query}",  # a slash that is not quoted
        f"gs://{KEY}:{QUOTED}@fleet/whole?sig={TOKEN}",
        f"nonsense://{KEY}:{QUOTED}@fleet/whole",
    ]


def run(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, str, set[str]]:
    """Run Python; return its exit code, what it printed on either stream, and its children's command lines."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AUTOTUNE_"))}
    homes = {"AUTOTUNE_HOME": str(tmp_path / "home"), "AUTOTUNE_SITE": str(tmp_path / "site")}
    with subprocess.Popen(
        [sys.executable, *arguments],
        env={**clean, **homes, **environment},
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        watcher = Watcher(process.pid)
        thread = threading.Thread(target=watcher.watch)
        thread.start()
        printed, _ = process.communicate(timeout=400)
        watcher.is_over = True
        thread.join()
    return process.returncode, printed, watcher.seen


def leaks(text: str) -> list[str]:
    return [line for line in text.splitlines() if any(piece in line for piece in PIECES)]


def written(folder: Path) -> str:
    return "\n".join(path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("number", range(8))
def test_a_pull_repeats_no_credential(uris: list[str], tmp_path: Path, number: int) -> None:
    command = ["-m", "autotune", "tables", "pull", "--json"]
    code, printed, lines = run(tmp_path, *command, AUTOTUNE_PULL=uris[number])
    assert (code, bool(printed)) == (int(number > 0), True)
    assert leaks("\n".join([printed, *lines, written(tmp_path)])) == []


def test_refused_arguments_repeat_no_credential(uris: list[str], tmp_path: Path) -> None:
    for command in (
        ["tables", "pull", "x", "--tables", uris[0]],
        ["tables", "merge", uris[0], "--into", "here", "--json"],
        ["tables", "digest", "--expect", uris[0], "--json"],
        ["show", "--tables", uris[0]],
        ["report", uris[0]],
        ["report", "--output", uris[0]],
    ):
        code, printed, lines = run(tmp_path, "-m", "autotune", *command)
        assert (code, "s3:" in printed, "***" in printed) == (2, True, True), printed
        assert leaks("\n".join([printed, *lines, written(tmp_path)])) == []


def test_a_program_full_of_failures_leaks_nothing(uris: list[str], server: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    code, printed, lines = run(tmp_path, "program.py", str(tmp_path / "tuned"), TEST_URIS=" ".join(uris))
    assert code == 0, printed
    assert printed.count("Traceback") >= 7
    assert "AttemptEnd" in printed
    assert lines  # the children that compile
    assert leaks("\n".join(lines)) == []
    assert leaks(printed) == []
    assert leaks(written(tmp_path)) == []
    objects = remote_texts(server)
    assert any("ended.json" in name for name in objects)
    assert leaks("\n".join([*objects, *objects.values()])) == []


def test_an_unforeseen_error_of_a_command_is_shown_without_credentials(uris: list[str], tmp_path: Path) -> None:
    (tmp_path / "breaking.py").write_text(
        "import os, autotune.table.pull as pull\n"
        "def find(source): raise RuntimeError('broken at ' + os.environ['AUTOTUNE_PULL'])\n"
        "pull._find_tables = find\n"
    )
    code, printed, _ = run(tmp_path, "-m", "autotune", "tables", "pull", "--import", "breaking", AUTOTUNE_PULL=uris[0])
    assert (code, "RuntimeError: broken at s3://***@fleet/whole" in printed) == (1, True), printed
    assert leaks(printed) == []


def remote_texts(server: str) -> dict[str, str]:
    """Return what is in the bucket, by names."""
    from pyarrow import fs

    store = fs.S3FileSystem(
        access_key="any", secret_key="any", endpoint_override=server, scheme="http", region="us-east-1"
    )
    found = store.get_file_info(fs.FileSelector("fleet", recursive=True))
    texts = {}
    for each in (each for each in found if each.type == fs.FileType.File):
        with store.open_input_file(each.path) as file:
            texts[each.path] = file.read().decode("latin-1")
    return texts
