"""Whatever is wrong with a command is said in one line, changes nothing, and is told by the exit code."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from autotune.console import options
from autotune.search import DEFAULT_SAMPLER, SAMPLERS
from tests import sample
from tests.cli.conftest import Machine, Ran

Run = Callable[..., Ran]

SHAPED: Final = ("search", "verify", "lookup", "warmup", "bench", "sweep")  # the commands that take a shape
COMMANDS: Final = (*SHAPED, "explain", "show", "export", "doctor")

# arguments: what the line must name
BAD_SHAPES: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("--seq", "0"): ("--seq=0", "from 1 to 2147483647"),
    ("--seq", "-1"): ("--seq=-1", "from 1 to 2147483647"),
    ("--seq", "1024,0"): ("--seq=0",),
    ("--seq", "0,...,8"): ("--seq=0", "from 1"),
    ("--seq", "1k"): ("--seq='1k'", "512,1024"),
    ("--seq", ""): ("--seq=''", "512,1024"),
    ("--seq", "9" * 5000): ("--seq=", "512,1024"),
    ("--seq-kv", "0"): ("--seq-kv=0", "from 1"),
    ("--batch", "0"): ("--batch=0", "from 1"),
    ("--heads", "0"): ("--heads=0", "from 1"),
    ("--heads", "16", "--kv-heads", "3"): ("--heads=16", "not a multiple of --kv-heads=3"),
    ("--head-dim", "100"): ("--head-dim=100", "a multiple of 8 from 8 to 512"),
    ("--head-dim", "7"): ("--head-dim=7 ", "a multiple of 8 from 8 to 512"),
    ("--head-dim", "520"): ("--head-dim=520", "a multiple of 8 from 8 to 512"),
    ("--window", "0"): ("--window=0", "from 1"),
    ("--dtype", "fp8_e5m2"): ("--dtype='fp8_e5m2'", "bfloat16"),
    ("--operation", "conv"): ("--operation='conv'", "flash_attention"),
    ("--model", "llama-3.1-8c"): ("--model='llama-3.1-8c'", "llama-3.1-8b"),
    ("--model", "/nonexistent/config.json"): ("/nonexistent/config.json", "does not exist"),
    ("--model", "llama-3.1-8b", "--tp", "5"): ("--tp=5", "1, 2, 4"),
    ("--tp", "2"): ("--tp=2", "--model"),
    ("--batch", "two"): ("--batch='two'", "512,1024"),
    ("--batch", "8,...,1"): ("--batch=8,...,1", "1,...,8"),
    ("--model", "llama-3.1-8b", "--heads", "4"): ("--heads=4", "8 KV heads of llama-3.1-8b", "--kv-heads"),
    ("--model", "llama-3.1-8b", "--tp", "2", "--heads", "6"): ("--heads=6", "4 KV heads of llama-3.1-8b tp2"),
    ("--model", "llama-3.1-8b", "--kv-heads", "5"): ("--kv-heads=5", "32 heads of llama-3.1-8b", "--heads"),
    ("--model", "llama-3.1-8b", "--kv-heads", "0"): ("--kv-heads=0", "from 1"),
    ("--seq", "512,...,300"): ("--seq=512,...,300", "ends below its start", "300,...,512"),
}

# The same of paged decode.
BAD_PAGED_SHAPES: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("--context", "0"): ("--context=0", "from 1 to 1073741824"),
    ("--context", "8k"): ("--context='8k'", "512,1024"),
    ("--context", "8192,...,512"): ("--context=8192,...,512", "512,...,8192"),
    ("--mean-context", "0"): ("--mean-context=0", "from 1 to 8192"),
    ("--mean-context", "9000"): ("--mean-context=9000", "from 1 to 8192"),
    ("--ragged", "--mean-context", "4096"): ("--ragged and --mean-context=4096", "exclude"),
    ("--context", "-5"): ("--context=-5", "from 1"),
    ("--queries", "9"): ("--queries=9", "paged_decode", "expected 1 to 8"),
    ("--queries", "4", "--context", "3"): ("--queries=4 is more than --context=3",),
    ("--queries", "0"): ("--queries=0", "from 1"),
    ("--page-size", "0"): ("--page-size=0", "from 1 to 1024"),
    ("--kv-dtype", "fp4"): ("--kv-dtype='fp4'", "float8_e4m3fn"),
    ("--layout", "DHN"): ("--layout='DHN'", "NHD", "HND"),
    ("--batch", ""): ("--batch=''", "512,1024"),
    ("--batch", "1,0"): ("--batch=0", "from 1"),
    ("--heads", "30", "--kv-heads", "8"): ("--heads=30", "not a multiple of --kv-heads=8"),
    ("--heads", "4"): ("--heads=4", "not a multiple of the usual 8 KV heads", "8, 16, ... or --kv-heads as well"),
    ("--heads", "-8"): ("--heads=-8", "from 1"),
    ("--kv-heads", "5"): ("--kv-heads=5", "does not divide the usual 32 heads", "--heads as well"),
    ("--model", "flux.1"): ("--model='flux.1'", "not causal"),
    ("--head-dim", "576"): ("--kv-heads=8", "--head-dim=576", "latents", "expected 1"),
    ("--head-dim", "576", "--kv-heads", "1", "--kv-dtype", "fp8"): ("--kv-dtype='float8_e4m3fn'", "expected bfloat16"),
    ("--seq", "512"): ("--seq='512'", "--seq is for --operation", "flash_attention"),
    ("--seq-kv", "512"): ("--seq-kv=512", "--seq-kv is for --operation", "flash_attention"),
    ("--no-causal",): ("--causal=False is not supported by paged_decode", "paged_prefill computes it"),
}
# Options of caches, which dense attention refuses.
PAGED_OPTIONS: Final = (
    *(("--context", "8192"), ("--mean-context", "64"), ("--ragged",), ("--queries", "2"), ("--page-size", "16")),
    *(("--kv-dtype", "bf16"), ("--layout", "NHD"), ("--alibi",), ("--no-alibi",)),
)

# Options of measuring and what the line must name.
BAD_SETTINGS: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("--policy", "lazy"): ("--policy='lazy'", "graph, eager"),
    ("--cache", "hot"): ("cache='hot'", "cold, warm"),
    ("--jobs", "0"): ("--jobs=0 is not allowed; expected an integer from 1\n",),
    ("--jobs", "two"): ("--jobs='two' is not allowed; expected an integer from 1\n",),
    ("--compile-timeout", "0"): ("--compile-timeout=0 is not allowed; expected a number from 1\n",),
    ("--timeout", "soon"): ("--timeout='soon' is not allowed; expected a number from 1\n",),
}


def assert_refused(ran: Ran, code: int, *words: str) -> None:
    """One line on standard error that has these words, and nothing else anywhere."""
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("autotune: ")
    assert ran.err.endswith("\n")
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err


QUICK = 4  # of the commands beside the first two, one bad shape in so many is in the quick suite


@pytest.mark.parametrize(
    ("arguments", "words", "command"),
    [
        pytest.param(
            *(arguments, words, command),
            id=f"{command} {' '.join(arguments)[:30]}",
            marks=[] if command in SHAPED[:2] or (number + place) % QUICK == 0 else [pytest.mark.slow],
        )
        for number, (arguments, words) in enumerate(BAD_SHAPES.items())
        for place, command in enumerate(SHAPED)
    ],
)
def test_a_bad_shape_is_refused(
    run: Run, machine: Machine, command: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    machine.ship_sweep(64)
    assert_refused(run(command, *arguments), 2, *words)
    assert not machine.home.exists()


@pytest.mark.parametrize("command", ["lookup", "bench"])
@pytest.mark.parametrize(
    ("arguments", "words"), BAD_PAGED_SHAPES.items(), ids=lambda value: " ".join(value)[:30] or "empty"
)
def test_a_bad_paged_shape_is_refused(
    run: Run, machine: Machine, command: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    machine.ship_sweep(64)
    assert_refused(run(command, "--operation", "paged_decode", *arguments), 2, *words)
    assert not machine.home.exists()


@pytest.mark.parametrize("arguments", PAGED_OPTIONS, ids=" ".join)
def test_dense_attention_refuses_options_of_caches(run: Run, machine: Machine, arguments: tuple[str, ...]) -> None:
    machine.ship_sweep(64)
    names = f"{arguments[0]} is for --operation"
    assert_refused(run("search", *arguments), 2, "is not for flash_attention; ", names)
    assert_refused(run("search", "--model", "flux.1", *arguments), 2, "is not for flash_attention; ", names)
    assert not machine.home.exists()


def test_a_search_refuses_what_the_kernel_cannot_compute_before_anything_is_searched(
    run: Run, machine: Machine
) -> None:
    machine.ship_sweep(64)
    for command in ("search", "lookup"):
        ran = run(command, "--operation", "paged_decode", "--queries", "9")
        assert_refused(ran, 2, "--queries=9 is not", "paged_decode", "expected 1 to 8")
    assert not machine.home.exists()


@pytest.mark.parametrize("command", ["search", "sweep"])
@pytest.mark.parametrize(("arguments", "words"), BAD_SETTINGS.items(), ids=lambda value: " ".join(value))
def test_a_bad_setting_is_refused(
    run: Run, machine: Machine, command: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    machine.ship_sweep(64)
    assert_refused(run(command, *arguments), 2, *words)
    assert not machine.home.exists()


def test_an_unknown_sampler_is_refused_and_the_help_names_all(run: Run, machine: Machine) -> None:
    assert_refused(run("search", "--sampler", "guess"), 2, "sampler='guess'", *SAMPLERS)
    assert not machine.home.exists()
    text = " ".join(run("search", "--help").out.split())
    said = text.partition("Proposes configs: ")[2].partition("]")[0]
    assert all(name in said for name in SAMPLERS)
    assert said.endswith(f"[default: {DEFAULT_SAMPLER}")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"hidden_size": 64}', '{"num_attention_heads": "8"}', "\xff"])
def test_a_malformed_config_is_refused_with_its_path(run: Run, machine: Machine, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="latin-1")
    assert_refused(run("search", "--model", path), 2, f"model='{path}'")
    assert not machine.home.exists()


@pytest.mark.parametrize("command", ["search", "lookup", "show", "export"])
def test_an_unknown_device_is_refused_with_the_known_ones(run: Run, machine: Machine, command: str) -> None:
    machine.ship_sweep(64)
    machine.ship(sample.trial())
    assert_refused(run(command, "--device", "Voodoo 2"), 2, "device='Voodoo 2'", "NVIDIA H200")
    assert not machine.home.exists()


@pytest.mark.parametrize("command", ["show", "export"])
def test_an_unknown_operation_is_refused_by_readers(run: Run, command: str) -> None:
    assert_refused(run(command, "--operation", "conv"), 2, "operation='conv'", "flash_attention")


@pytest.mark.parametrize("budget", ["-1", "soon", "1d", "", "s", "30s1m", "1m1m"])
def test_a_budget_that_is_no_time_is_refused(run: Run, machine: Machine, budget: str) -> None:
    assert_refused(run("search", f"--budget={budget}"), 2, f"autotune: --budget={budget!r} is not a time; expected ")
    assert not machine.home.exists()


@pytest.mark.parametrize("budget", ["0", "0s", "0m0s"])
def test_a_budget_of_nothing_is_refused(run: Run, machine: Machine, budget: str) -> None:
    refused = f"autotune: --budget={budget!r} is not allowed; expected more than 0 seconds (90), or 90s, 2m, 1m30s, 1h"
    assert_refused(run("search", f"--budget={budget}"), 2, refused)
    assert not machine.home.exists()


PLACED: Final = (("search", "--seq", "64"), ("search", "--seq", "64", "--dry-run"))


@pytest.mark.parametrize("command", PLACED, ids=" ".join)
@pytest.mark.parametrize("place", ["file", "file/sub"])
def test_a_place_where_no_folder_can_be_is_refused(
    run: Run, machine: Machine, tmp_path: Path, place: str, command: tuple[str, ...]
) -> None:
    machine.ship_sweep(64)
    (tmp_path / "file").touch()
    out = tmp_path / place
    assert_refused(run(*command, "--tables", out), 2, f"autotune: --tables='{out}' is not a folder; expected one")
    assert not machine.home.exists()
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("place", ["file", "file/sub"])
@pytest.mark.parametrize(
    "command", [*PLACED, ("show",), ("export",), ("lookup",), ("explain", str(sample.FAST))], ids=" ".join
)
def test_a_home_that_is_no_folder_is_refused_by_its_own_name(
    run: Run, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, command: tuple[str, ...]
) -> None:
    machine.ship_sweep(64)
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / place))
    assert_refused(run(*command), 2, f"autotune: AUTOTUNE_HOME='{tmp_path / place}' is not a folder; expected one")


def test_a_folder_that_cannot_be_written_is_refused(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.ship_sweep(64)
    refused = "='/proc/autotune' cannot be written: No such file or directory; name a folder by --tables or"
    assert_refused(run("search", "--seq", "64", "--tables", "/proc/autotune"), 2, f"autotune: --tables{refused}")
    monkeypatch.setenv("AUTOTUNE_HOME", "/proc/autotune")
    assert_refused(run("search", "--seq", "64"), 2, f"autotune: AUTOTUNE_HOME{refused}")
    monkeypatch.delenv("AUTOTUNE_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/proc")
    assert_refused(run("search", "--seq", "64"), 2, f"autotune: default AUTOTUNE_HOME{refused}")
    assert not machine.home.exists()


@pytest.mark.parametrize("given", [("--seq", "512"), ("--batch", "3"), ("--no-causal",), ("--operation", "x")], ids=str)
def test_shapes_beside_noted_misses_are_refused(run: Run, machine: Machine, given: tuple[str, ...]) -> None:
    named = given[0] + (f"={given[1]!r}" if len(given) > 1 else "")
    assert_refused(run("search", "--from-misses", *given), 2, f"autotune: {named} and --from-misses", "exclude")
    assert not machine.home.exists()


def test_the_check_of_a_folder_leaves_nothing(run: Run, machine: Machine, tmp_path: Path) -> None:
    machine.ship_sweep(64)
    refused = run("search", "--device", "Voodoo 2", "--tables", tmp_path / "out")
    assert refused.code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]


def test_a_file_that_cannot_be_written_is_refused(run: Run, machine: Machine, tmp_path: Path) -> None:
    machine.ship(sample.trial())
    assert_refused(run("export", "--output", tmp_path), 2, f"autotune: --output='{tmp_path}'", "Is a directory")


def test_a_folder_to_read_that_is_none_is_refused(run: Run, tmp_path: Path) -> None:
    for command in ("show", "export"):
        assert_refused(
            run(command, "--tables", tmp_path / "typo"), 2, f"autotune: --tables='{tmp_path / 'typo'}'", "--tables"
        )


def test_an_unknown_format_is_refused(run: Run, machine: Machine) -> None:
    machine.ship(sample.trial())
    assert_refused(run("export", "--format", "yaml"), 2, "autotune: --format='yaml' ", "csv, json, triton")


@pytest.mark.parametrize("command", ["bench", "sweep"])
def test_measuring_without_a_gpu_fails(run: Run, machine: Machine, command: str) -> None:
    assert_refused(run(command), 1, "no GPU is visible", "autotune doctor")
    assert not machine.home.exists()


def test_nothing_to_export_is_no_wrong_usage(run: Run) -> None:
    for name in ("flash_attention", "paged_decode"):
        assert_refused(run("export", "--operation", name), 1, f"no winners of {name} yet", f"--operation {name}`")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune",), ("'tune'", "`autotune --help`")),
        (("search", "--sequence", "1"), ("--sequence", "--seq", "`autotune search --help`")),
        (("search", "--heads", "two"), ("--heads='two' is not allowed; expected an integer\n",)),
        (("search", "--batch"), ("--batch", "requires")),
        (("search", "--trials", "0"), ("--trials=0 is not allowed; expected an integer from 1\n",)),
        (("search", "--seed", "-1"), ("--seed=-1 is not allowed; expected an integer from 0 to 4294967295\n",)),
        (("search", "--seed", str(2**32)), (f"--seed={2**32} is not", "from 0 to 4294967295\n")),
        (("search", "--tp", "0"), ("--tp=0 is not allowed; expected an integer from 1\n",)),
        (("bench", "--seconds", "0"), ("--seconds=0 is not allowed; expected a number from 1\n",)),
        (("show", "extra"), ("extra", "`autotune show --help`")),
        (("explain",), ("CONFIG", "`autotune explain --help`")),
    ],
    ids=lambda value: " ".join(value)[:30],
)
def test_wrong_options_are_refused_in_one_line(
    run: Run, machine: Machine, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_refused(run(*arguments), 2, *words)
    assert not machine.home.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "--json" in ran.out
    assert command in run("--help").out


ROOT: Final = Path(__file__).parents[2]
DOCUMENTED: Final = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


def options_of(run: Run, command: str) -> set[str]:
    text = run(*command.split(), "--help").out
    return {flag for line in re.findall(r"^  (--.*)", text, re.M) for flag in re.findall(r"--[a-z-]+", line[:26])}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_documented(run: Run, command: str) -> None:
    assert f"| `autotune {command}` |" in DOCUMENTED
    options = {each for each in options_of(run, command) if each != "--help" and not each.startswith("--no-")}
    assert [each for each in sorted(options) if not re.search(rf"`{each}\b", DOCUMENTED)] == []


def test_every_option_that_is_documented_exists(run: Run) -> None:
    known = set().union(*(options_of(run, command) for command in (*COMMANDS, "report", "analyze trace")))
    assert sorted(set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", DOCUMENTED)) - known) == []


def test_no_command_is_a_plea_for_help(run: Run) -> None:
    ran = run()
    assert "Usage: autotune" in ran.out + ran.err
    assert "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 " in ran.out + ran.err


@pytest.mark.parametrize("command", SHAPED)
def test_the_shape_options_come_last_and_keep_their_order(run: Run, command: str) -> None:
    text = run(command, "--help").out
    options = ["--operation", "--seq ", "--seq-kv", "--context", "--mean-context", "--ragged", "--queries", "--batch"]
    options += ["--heads", "--kv-heads", "--head-dim", "--dtype", "--kv-dtype", "--page-size", "--layout"]
    options += ["--causal / --no-causal", "--window", "--softcap / --no-softcap", "--attn-mask", "--sinks / --no-sinks"]
    options += ["--kv-ends / --no-kv-ends"]
    options += ["--alibi / --no-alibi", "--model", "--tp"]
    places = [text.index(f"\n{part}") for part in ("Options:", "  --json", "Shape:", *(f"  {o}" for o in options))]
    assert places == sorted(places)


@pytest.mark.parametrize("command", ["show", "lookup", "export --implementation triton"])
def test_readers_load_neither_optuna_nor_triton(machine: Machine, command: str) -> None:
    machine.tune(sample.trial())
    code = (
        "import sys\n"
        "from autotune.cli import main\n"
        f"sys.argv = {['autotune', *command.split()]}\n"
        "try:\n    main()\n"
        "except SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "print(*{'optuna', 'triton', 'sqlalchemy'} & sys.modules.keys(), file=sys.stderr)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "\n")
    assert result.stdout


def test_version(run: Run) -> None:
    assert run("--version").out.startswith("attention-autotune ")


def test_the_real_process_ends_in_the_same_way(tmp_path: Path) -> None:
    def autotune(*arguments: str) -> Ran:
        environment = {**os.environ, "AUTOTUNE_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "autotune", *arguments]
        result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        return Ran(result.returncode, result.stdout, result.stderr)

    assert_refused(autotune("lookup", "--head-dim", "100"), 2, "--head-dim=100")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "home").touch()
    assert_refused(autotune("show"), 2, f"AUTOTUNE_HOME='{tmp_path / 'home'}' is not a folder")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90", 90), ("1.5s", 1.5), ("2m", 120), ("1 h", 3600)),
        *(("1m30s", 90), ("1m30", 90), ("1h 30m", 5400), ("1h2m3s", 3723), ("0m5s", 5)),
    ],
)
def test_budgets_are_read_as_they_are_written(text: str, seconds: float) -> None:
    assert options.parse_seconds(text) == seconds


@pytest.mark.parametrize("command", ["search", "lookup", "show"])
def test_a_misspelt_device_is_told_the_name_that_was_meant(run: Run, machine: Machine, command: str) -> None:
    machine.ship_sweep(64)
    machine.ship(sample.trial())
    assert_refused(run(command, "--device", "NVIDA H200"), 2, "; did you mean 'NVIDIA H200'?")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("report --roofline", "requires an argument; see `autotune report --help`"),
        ("search --seq", "requires an argument; see `autotune search --help`"),
        ("bench --against", "requires an argument; see `autotune bench --help`"),
        ("analyze roofline --seq", "requires an argument; see `autotune analyze roofline --help`"),
        ("serch", "Did you mean 'search'?; see `autotune --help`"),
        ("import", "Did you mean 'tables import'?; see `autotune --help`"),
        ("rooflin", "Did you mean 'analyze roofline'?; see `autotune --help`"),
        ("sttus", "Did you mean 'grid status'?; see `autotune --help`"),
        ("analyze trac", "Did you mean 'trace'?; see `autotune analyze --help`"),
    ],
)
def test_what_was_mistyped_names_the_help_or_the_command_that_was_meant(run: Run, typed: str, said: str) -> None:
    assert_refused(run(*typed.split()), 2, said)
