"""The pages on tables do what they say: the transcript is run, and the workflows are parsed and their steps run."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.table import Store
from tests import sample
from tests.dispatch.tables import SLOWER

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
LATER: Final = sample.START.replace(day=23)


class Shell:
    """A folder with ``autotune`` on the path, as it is installed, and no tables but those that the test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        script = folder / "bin" / "autotune"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m autotune "$@"\n')
        script.chmod(0o755)

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNE")}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        environment = {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(self.folder), "COLUMNS": "100"}
        return subprocess.run(
            ["bash", "-ec", text], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def lab(folder: Path) -> None:
    """Write the tables of the page: ours, and a colleague's with a race that moved the winner and one more shape."""
    Store(folder / "mine").append([sample.trial(chosen=SLOWER, race_id="20261121-ours")])
    moved = [
        sample.trial(chosen=SLOWER, timing=sample.timing(224.0), number=2),
        sample.trial(timing=sample.timing(200.0), number=3),
    ]
    rows = [*moved, sample.trial(sample.shape(2048), number=4, timing=sample.timing(390.0))]
    Store(folder / "from-lab").append(
        replace(row, race_id="20261123-lab", started_at=LATER, default_timing=None) for row in rows
    )


def test_the_transcript_merges_diffs_and_serves_a_table_from_another_machine(shell: Shell) -> None:
    lab(shell.folder)
    (transcript,) = blocks("tables.md", "console")
    commands = [line.removeprefix("$ ") for line in transcript.splitlines() if line.startswith("$ ")]
    assert len(commands) == 5
    ran = shell.run("\n".join(f"echo {shlex.quote(f'$ {command}')}\n{command}" for command in commands))
    assert ran.stderr == ""
    # Where another Triton is installed than the rows name, a line says so.
    assert "".join(line for line in ran.stdout.splitlines(True) if not line.startswith("note ")) == transcript


def test_the_module_of_an_export_answers_as_the_page_calls_it(shell: Shell) -> None:
    (snippet,) = blocks("tables.md", "python")
    ran = shell.run("autotune export --format python --output winners.py")
    assert ran.returncode == 0
    assert "winners of flash_attention/triton; others have winners, too" in ran.stderr
    (shell.folder / "engine.py").write_text(f"{snippet}\nassert config['BLOCK_Q'] > 0, config\n")
    ran = shell.run(f"PYTHONPATH= {shlex.quote(sys.executable)} -S engine.py")  # no installed package can be imported
    assert (ran.returncode, ran.stderr) == (0, "")


def steps(workflow: str) -> list[str]:
    found: dict[str, Any] = import_module("yaml").safe_load(workflow)  # which Optuna brings; it has no types
    assert found["permissions"] == {"contents": "read"}
    return [step["run"] for job in found["jobs"].values() for step in job["steps"] if "run" in step]


@pytest.mark.slow
def test_the_workflow_passes_on_sound_tables_and_fails_on_others(shell: Shell) -> None:
    check, _ = blocks("ci-for-kernels.md", "yaml")
    install, command = steps(check)
    assert install.startswith("python -m pip install ")
    results = shell.folder / "results"
    Store(results).append([sample.trial()])
    assert shell.run(command).returncode == 0
    Store(results).append([sample.trial(sample.shape(2048), source_hash="cd" * 32)])
    ran = shell.run(command)
    assert (ran.returncode, "stale: " in ran.stderr, "the kernel changed" in ran.stderr) == (1, True, True)
    shutil.rmtree(results)
    race = [sample.trial(chosen=SLOWER, timing=sample.timing(189.0), number=2), sample.trial(number=3)]
    Store(results).append([sample.trial()])
    Store(results).append([replace(row, race_id="new", started_at=LATER) for row in race])
    shutil.copytree(results, shell.folder / "races")
    ran = shell.run(command)  # of the folder itself the newest race decides, which has another winner
    assert ran.returncode == 0


@pytest.mark.slow
def test_the_gpu_workflow_fails_where_a_newer_race_beats_a_winner(shell: Shell) -> None:
    _, on_a_gpu = blocks("ci-for-kernels.md", "yaml")
    merge, revalidate, check = steps(on_a_gpu)
    Store(shell.folder / "results").append([sample.trial()])
    assert shell.run(merge).returncode == 0
    ran = shell.run(revalidate)
    assert (ran.returncode, "no GPU is visible" in ran.stderr) == (1, True)  # here, where the test stands in for it
    race = [sample.trial(chosen=SLOWER, timing=sample.timing(189.0), number=2), sample.trial(number=3)]
    Store(shell.folder / "races").append(replace(row, race_id="new", started_at=LATER) for row in race)
    ran = shell.run(check)
    assert (ran.returncode, "slower: " in ran.stderr, "5.8 % longer" in ran.stderr) == (1, True, True)


def test_every_command_that_the_pages_name_exists(shell: Shell) -> None:
    from autotune.cli.tables import tables

    named = {
        name
        for page in ("tables.md", "ci-for-kernels.md")
        for name in re.findall(r"autotune tables ([a-z]+)", (DOCS / page).read_text())
    }
    assert named == set(tables.references)
