"""The recipes that start Ray are what their own linters accept, do what they say, and are documented."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
RECIPES: Final = sorted((ROOT / "recipes").iterdir())
SCRIPTS: Final = [path for path in RECIPES if path.suffix == ".sh"]
PAGE: Final = ROOT / "docs" / "fleets-recipes.md"


def tool(name: str) -> str:
    """Return a linter beside this Python, or on the path."""
    beside = Path(sys.executable).with_name(name)
    if (found := str(beside) if beside.exists() else shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed")
    return found


def lint(*command: str | Path) -> None:
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(path: Path) -> None:
    lint("bash", "-n", path)
    assert path.stat().st_mode & 0o111


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_clean(path: Path) -> None:
    lint(tool("shellcheck"), "--severity=style", path)


def test_manifests_are_clean() -> None:
    rules = "{extends: default, rules: {line-length: {max: 120}, braces: {max-spaces-inside: 0}}}"
    lint(tool("yamllint"), "--strict", "-d", rules, ROOT / "recipes" / "kuberay.yaml")


def test_a_label_survives_the_quotes_of_kuberay() -> None:
    """KubeRay puts the text into a command line of a shell, which takes the outer quotes off."""
    yaml = pytest.importorskip("yaml")
    manifest = yaml.safe_load((ROOT / "recipes" / "kuberay.yaml").read_text())
    (group,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (label,) = shlex.split(group["rayStartParams"]["resources"])
    assert json.loads(label) == {"NVIDIA H200": 1}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_each_recipe_is_documented(path: Path) -> None:
    assert f"recipes/{path.name}" in PAGE.read_text()


SPOKEN: Final = """#!{python}
import json, os, sys
with open(os.environ["SPOKEN"], "a") as file:
    print(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]), file=file)
    if sys.argv[1:2] == ["start"]:
        print(json.dumps(["token", os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"]]), file=file)
"""
FAKES: Final = {
    "ssh": '#!/bin/bash\nshift\nexec bash -c "$*"\n',
    "scontrol": "#!/bin/bash\nprintf 'first\\nsecond\\n'\n",
    "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nSLURM_PROCID=${SLURM_PROCID:-0} exec "$@"\n',
}


@pytest.fixture
def spoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands that only note how they are called; other hosts are this one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fakes = {**FAKES, **dict.fromkeys(("ray", "autotune"), SPOKEN.format(python=sys.executable))}
    for name, text in fakes.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (tmp_path / ".bash_profile").write_text(f"export PATH={folder}:$PATH\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SPOKEN", str(tmp_path / "spoken"))
    return tmp_path / "spoken"


def calls(spoken: Path) -> list[list[str]]:
    return [json.loads(line) for line in spoken.read_text().splitlines()]


def labels(spoken: Path) -> list[dict[str, int]]:
    return [json.loads(call[call.index("--resources") + 1]) for call in calls(spoken) if "--resources" in call]


def test_ssh_starts_ray_everywhere_and_stops_it(spoken: Path) -> None:
    lint(ROOT / "recipes" / "ssh.sh", "grid.toml", "/shared/results", "NVIDIA H200", "host1", "host2")
    assert labels(spoken) == [{"NVIDIA H200": 1}] * 2
    tokens = [call for call in calls(spoken) if call[0] == "token"]
    assert len(tokens) == 3
    assert len({tuple(call) for call in tokens}) == 1
    assert len(tokens[0][2]) == 64
    assert tokens[0][2] not in str([call for call in calls(spoken) if call[0] != "token"])
    (search,) = [call for call in calls(spoken) if call[0] == "autotune"]
    assert search[1:4] == ["search", "--grid", "grid.toml"]
    assert search[-2:] == ["--place", "/shared/results"]
    assert [call[1] for call in calls(spoken)][-3:] == ["stop"] * 3


def test_slurm_starts_the_head_and_runs_the_grid(spoken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "first,second")
    lint(ROOT / "recipes" / "slurm.sh", "grid.toml", "s3://bucket/results")
    assert labels(spoken) in ([], [{"NVIDIA H200": 1}])  # the head may be slower than what only notes its call
    (search,) = [call for call in calls(spoken) if call[0] == "autotune"]
    assert search[1:] == shlex.split(
        "search --grid grid.toml --engine ray --address first:6379 --place s3://bucket/results"
    )
