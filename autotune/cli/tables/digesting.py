"""``autotune tables digest``: servers that serve alike have one digest."""

import json
from collections.abc import Mapping
from pathlib import Path

import click

from autotune.cli.stored import require_folder
from autotune.console.command import command, option
from autotune.console.options import PATH, json_option
from autotune.console.output import make_console, print_json
from autotune.errors import AutotuneError, UsageError
from autotune.table.digest import TablesDigest, tables_digest
from autotune.table.files import read_bytes
from autotune.table.parts import DIGEST
from autotune.units import few_text

SHOWN_PARTS = 10


@command("digest")
@click.argument("tables", metavar="[FOLDER]", required=False, type=PATH)
@option(
    "--expect",
    metavar="DIGEST|FILE",
    help="Exit with 1 unless this is the digest; of a FILE of --json, the parts that differ are named.",
)
@json_option
def digest(tables: Path | None, expect: str | None, as_json: bool) -> None:
    """Print one digest of all that is served on this machine: from your tables, by default those of $AUTOTUNE_HOME, or
    those of FOLDER in their place, the site's, packages' and the shipped ones.

    How rows are spread over files makes no difference, nor whose tables have them, nor rows that are not served.
    """
    require_folder(tables)
    expected = None if expect is None else _expected(expect)
    found = tables_digest(tables)
    if as_json:
        print_json({"digest": found.digest, "parts": found.parts})
    else:
        make_console().print(found.digest)
    if expected is not None and found.digest != expected[0]:
        raise AutotuneError(f"the tables here have the digest {found}, not {expected[0]}{_where(found, expected[1])}")


def _where(found: TablesDigest, expected: Mapping[str, str]) -> str:
    if not expected:
        return "; a FILE of `autotune tables digest --json` in its place names the parts that differ"
    return f"; different: {few_text(found.differences(expected), limit=SHOWN_PARTS)}"


def _expected(text: str) -> tuple[str, Mapping[str, str]]:
    """Return the digest of ``--expect``, and those of the parts where a file has them."""
    if DIGEST.fullmatch(text):
        return text, {}
    path = Path(text)
    if not path.is_file():
        raise UsageError(f"expect={text!r} is neither a digest of 64 hexadecimal digits nor a file of --json")
    try:
        given = json.loads(read_bytes(path))
        digest, parts = given["digest"], given["parts"]
        if DIGEST.fullmatch(digest) and all(DIGEST.fullmatch(part) for part in parts.values()):
            return digest, parts
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise UsageError(f"expect={text!r} is no output of `autotune tables digest --json`")
