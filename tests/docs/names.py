"""Names in a block that cannot be run here: options, modules, targets and public names, which must exist."""

import ast
import inspect
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Final

import click

import autotune
from autotune.cli.app import COMMANDS
from autotune.console.command import Group, Reference
from tests.docs.blocks import ROOT

TARGETS: Final = frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def wrong_names(language: str, text: str) -> list[str]:
    """Return what a Python source, or the commands of a shell, name and does not exist."""
    if language == "python":
        return sorted(_wrong_python(ast.parse(text)))
    return [wrong for line in text.splitlines() for wrong in _wrong_command(line)]


def _wrong_python(tree: ast.Module) -> Iterator[str]:
    """Find attributes of ``autotune`` that it does not have, and keywords that its functions do not take."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "autotune":
            is_module = find_spec(f"autotune.{node.attr}") is not None
            if not is_module and not hasattr(autotune, node.attr):
                yield f"autotune.{node.attr}"
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("autotune."):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name not in autotune.__all__:
                continue
            parameters = inspect.signature(getattr(autotune, name)).parameters
            if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
                yield from (f"{name}({each.arg}=)" for each in node.keywords if each.arg and each.arg not in parameters)


def _wrong_command(line: str) -> Iterator[str]:
    """Find commands, options, modules and targets that do not exist; pipes and other programs are passed over."""
    for part in re.split(r"\||&&|;|\bdo\b", line):
        words = shlex.split(part, comments=True)
        while words and ("=" in words[0] or words[0].endswith("/python")):  # a variable of the environment
            words = words[1:] if "=" in words[0] else ["python", *words[1:]]
        if not words:
            continue
        if words[0].removeprefix(".venv/bin/") == "autotune":
            yield from _wrong_options(words[1:])
        elif words[:2] == ["python", "-m"] and words[2].partition(".")[0] in ("autotune", "benchmarks"):
            if find_spec(words[2]) is None:
                yield f"python -m {words[2]}"
        elif words[0] == "make":
            yield from (f"make {each}" for each in words[1:] if "=" not in each and each not in TARGETS)


def _wrong_options(words: list[str], references: Mapping[str, Reference] = COMMANDS) -> Iterator[str]:
    if not words or not words[0].islower() or words[0].startswith("-"):
        return  # the command itself, or a placeholder
    if words[0] not in references:
        yield f"autotune {words[0]}"
        return
    command: click.Command = references[words[0]].load()
    if isinstance(command, Group):
        yield from _wrong_options(words[1:], command.references)
        return
    known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)} | {"--help"}
    for word in words[1:]:
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            yield f"autotune {words[0]} {flag}"
