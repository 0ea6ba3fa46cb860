"""``autotune export``: write winners, or a sweep, for other programs; no GPU, no torch, no triton."""

import difflib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from autotune.cli.stored import no_winners_text, read_winners
from autotune.console.command import command, option
from autotune.console.kernel_option import operation_options
from autotune.console.options import device_option, json_option, output_option, tables_option
from autotune.console.shape_options import OPERATION
from autotune.errors import AutotuneError, TableError, UnknownNameError, UsageError
from autotune.registry import get_operation, implementations_of, operation_names
from autotune.table import export as export_text
from autotune.table import shipped_sweeps, to_t4
from autotune.table.engine_files import engine_files
from autotune.table.export import FORMS
from autotune.trial import Trial
from autotune.units import count_text, few_text

T4: Final = "t4"
ENGINE: Final = "vllm"


@command("export")
@operation_options(default_text=f"{OPERATION}; a sweep is found by its name")
@option(
    "--format",
    "form",
    default="json",
    help=(
        "json, csv, triton-config (a Python list of triton.Config), flex (options for torch), python (a module to "
        "vendor), vllm (a JSON file a device and problem), or t4 with --sweep."
    ),
)
@option(
    "--key", metavar="FIELD", help="With --format vllm: the size that a file maps.", default_text="the fewest files"
)
@option("--sweep", metavar="NAME", help="With --format t4: a recorded sweep, every config of it.")
@option("--implementation", metavar="NAME", help="Whose winners.", default_text="the first that has some, ours first")
@device_option("all")
@tables_option
@output_option(default_text="standard output")
@json_option
def export(
    operation: str | None,
    form: str,
    key: str | None,
    sweep: str | None,
    implementation: str | None,
    device: str | None,
    tables: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Write the winners of one implementation, yours and those that ship, for other programs; or a whole sweep as T4.

    --format vllm writes several files, into the folder that --output names; without it they are printed as JSON.
    """
    if as_json and form != "json":
        raise UsageError(f"--json and --format={form!r} exclude each other; name one")
    if form not in (*FORMS, ENGINE, T4):
        raise UnknownNameError(f"form={form!r} is unknown; allowed: {', '.join((*FORMS, ENGINE))}, {T4} (with --sweep)")
    if (form == T4) != (sweep is not None):
        raise UsageError(
            f"--format={form!r} {'without' if sweep is None else 'with'} --sweep is not allowed; "
            "expected --format t4 --sweep NAME together"
        )
    if key is not None and form != ENGINE:
        raise UsageError(f"--key={key!r} is only allowed with --format {ENGINE}")
    if sweep is not None:
        text = json.dumps(to_t4(_recorded(operation, sweep)), indent=2)
    else:
        name = operation or OPERATION
        chosen = (implementation,) if implementation else ()
        rows = read_winners(name, chosen, device, tables)
        if not rows:
            raise AutotuneError(no_winners_text(name, chosen))
        found = {trial.implementation for trial in rows}
        first = next(each.name for each in implementations_of(name) if each.name in found)
        chosen_rows = [trial for trial in rows if trial.implementation == first]
        if implementation is None and len(found) > 1:
            print(_left_out_text(name, first, len(chosen_rows), found), file=sys.stderr)
        if form == ENGINE:
            _write_files(engine_files(chosen_rows, key), output)
            return
        text = export_text(chosen_rows, form)
    if output is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    _write(output, text, output)


def _left_out_text(operation: str, first: str, count: int, found: Iterable[str]) -> str:
    """Explain whose winners are written, and that others' may be what is served."""
    others = ", ".join(sorted(set(found) - {first}))
    written = f"{count_text(count, 'winner')} of {operation}/{first}"
    return f"{written}; others have winners, too, which may be faster: --implementation {others}"


def _write_files(files: Mapping[str, str], folder: Path | None) -> None:
    """Write files into a folder, which is made; without one print them as one object of JSON, by name."""
    if folder is None:
        print(json.dumps({name: json.loads(text) for name, text in files.items()}, indent=4))
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"output={str(folder)!r} cannot be made as a folder: {error.strerror}") from error
    for name, text in files.items():
        _write(folder / name, text, folder)


def _write(path: Path, text: str, output: Path) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"output={str(output)!r} cannot be written: {error.strerror}") from error


def _recorded(operation: str | None, name: str) -> list[Trial]:
    """Return the rows of a shipped sweep by the name of its file, of this operation or of any."""
    operations = operation_names() if operation is None else [get_operation(operation).name]
    damaged: list[TableError] = []
    sweeps = {sweep.name: sweep for each in operations for sweep in shipped_sweeps(each, on_damaged=damaged.append)}
    for error in damaged:
        if f"/{name}.parquet: " in str(error):
            raise error
    if name not in sweeps:
        near = difflib.get_close_matches(name, sweeps, n=len(sweeps) or 1, cutoff=0.0)
        raise UnknownNameError(f"sweep={name!r} is unknown; recorded: {few_text(near) or 'none'}")
    return sweeps[name].trials()
