"""The comparisons of one command: one after another, printed as they end; a failure costs no other."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console

from autotune.console.output import print_sheet, say
from autotune.console.shape_options import OPERATION
from autotune.console.shapes import Problem
from autotune.dispatch import Among
from autotune.errors import AutotuneError, MissingDependencyError, UnknownNameError, one_line
from autotune.executor import Executor
from autotune.executor.select import Settings, open_gpu
from autotune.lab.bench.comparison import Comparison, comparison_sheet
from autotune.lab.bench.races import compare_on_cpu, compare_on_gpu, why_not_here
from autotune.operation import Baseline, Operation
from autotune.registry import load_baselines
from autotune.shape import Shape

ALL: Final = "all"


@dataclass
class Benched:
    """The comparisons of a command, its failures by shape, and the exception that ended it before the last shape."""

    comparisons: list[Comparison] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    ending: BaseException | None = None


def choose_names(known: Sequence[Baseline], against: Sequence[str]) -> list[str]:
    """Choose baselines: the usual ones if ``against`` is empty, all for ``all``, else the named ones, in their order.

    A name may have hyphens for its spaces; UnknownNameError for one that the operation does not have.

    Example:
        >>> choose_names(load_baselines("flash_attention"), ["sdpa-flash", "naive"])
        ['sdpa flash', 'naive']
    """
    if not against:
        return [baseline.name for baseline in known if baseline.is_usual]
    names = [baseline.name for baseline in known]
    wanted = {name.replace("-", " ").strip() for name in against}
    for name in wanted - {ALL, *names}:
        raise UnknownNameError(f"against={name!r} is unknown; allowed: {', '.join([ALL, *names])}")
    return [name for name in names if ALL in wanted or name in wanted]


def choose(problems: Sequence[Problem], against: Sequence[str], *, cpu: bool) -> tuple[list[list[str]], list[str]]:
    """Choose the baselines of each problem; return them with notes for the user.

    If none of the usual baselines can run on this CPU, those that can join them; MissingDependencyError if none can.
    """
    chosen = [choose_names(load_baselines(operation.name), against) for operation, _ in problems]
    if not cpu:
        return chosen, []
    operations = dict.fromkeys(operation.name for operation, _ in problems)
    if not any(baseline.available() is None for name in operations for baseline in load_baselines(name)):
        raise MissingDependencyError(
            f"every baseline of {', '.join(operations)} needs a GPU: --cpu has none to compare"
        )
    notes: list[str] = []
    for (operation, shape), names in zip(problems, chosen, strict=True):
        able = [] if against else _able(operation, shape)
        if able and not set(able) & set(names):
            left = f"none of the usual baselines ({', '.join(names)}) runs here; compared: {', '.join(able)}"
            notes.append(f"{left}; --against all lists the others too, and what they lack")
            names += able
    return chosen, list(dict.fromkeys(notes))


def _able(operation: Operation[Any], shape: Shape) -> list[str]:
    return [each.name for each in load_baselines(operation.name) if why_not_here(each, shape) is None]


def compare_all(
    problems: Sequence[Problem],
    chosen: Sequence[list[str]],
    console: Console,
    *,
    seconds: float,
    cpu: bool,
    among: Among = "ours",
) -> Benched:
    """Race each problem and print it; Ctrl-C keeps those that ended before.

    A problem where nothing ran is a comparison, with the reasons, and a failure too. ``among`` are the implementations
    of which ``get_kernel`` serves one.
    """
    benched = Benched()
    try:
        with contextlib.nullcontext() if cpu else contextlib.closing(_open_gpu(problems)) as executor:
            for (operation, shape), names in zip(problems, chosen, strict=True):
                try:
                    found = _compare(executor, operation, shape, names, seconds=seconds, among=among)
                except (AutotuneError, RuntimeError, MemoryError) as error:  # torch's, above all where memory ends
                    text = " ".join(str(error).split()) if isinstance(error, AutotuneError) else one_line(error)
                    benched.failures.append(f"{shape}: {text}")
                    console.print(f"FAILED: {benched.failures[-1]}")
                    continue
                title = "" if operation.name == OPERATION else operation.name
                print_sheet(console, comparison_sheet(found, name=title))
                benched.comparisons.append(found)
                if (reason := _why_failed(found, operation, names, cpu=cpu)) is not None:
                    benched.failures.append(f"{shape}: {reason}")
                    console.print(reason)
    except KeyboardInterrupt as error:
        benched.ending = error
        console.print(f"interrupted: {len(benched.comparisons)} of {len(problems)} shapes were compared")
    except Exception as error:
        if not benched.comparisons:
            raise
        benched.ending = error  # a mistake of this program must not cost what was compared before
    return benched


def _open_gpu(problems: Sequence[Problem]) -> Executor:
    try:
        return open_gpu(Settings())
    except MissingDependencyError as error:
        if not any(_able(*each) for each in problems):
            raise
        raise MissingDependencyError(f"{error}; --cpu compares the baselines on the processor") from error


def _compare(
    executor: Executor | None,
    operation: Operation[Any],
    shape: Shape,
    names: Sequence[str],
    *,
    seconds: float,
    among: Among,
) -> Comparison:
    if executor is not None:
        return compare_on_gpu(executor, operation, shape, names, seconds=seconds, among=among)
    from autotune.lab.machine.processor import read_processor, usable_bytes  # loads torch

    room = usable_bytes(read_processor("cpu"))
    return compare_on_cpu(operation, shape, names, seconds=seconds, room=room, on_step=say)


def _why_failed(found: Comparison, operation: Operation[Any], asked: Sequence[str], *, cpu: bool) -> str | None:
    """Return why a comparison is a failure: no time of what is served, or of anything; and what else can be asked."""
    if found.served is not None and found.served.timing is None:
        return f"{found.served.candidate} is {found.served.message}"
    if found.timed:
        return None
    known = _able(operation, found.shape) if cpu else [each.name for each in load_baselines(operation.name)]
    if not known:
        return f"no baseline of {operation.name} runs here for this shape"
    others = [name for name in known if name not in asked]
    return f"nothing ran here; --against all also has: {', '.join(others)}" if others else "nothing ran here"
