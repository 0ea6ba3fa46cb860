"""Checks of this machine and installation, each with the command that repairs it."""

import importlib.util
import os
import platform
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune import platforms
from autotune.cli.packages import why_no_import
from autotune.console.options import NOT_WRITTEN
from autotune.errors import TableError
from autotune.implementation import installed_version
from autotune.registry import (
    broken_registrations,
    implementation_names,
    implementations_of,
    operation_names,
    stray_implementations,
)
from autotune.table import (
    Store,
    home,
    is_shipped,
    shipped_outsiders,
    shipped_portfolios,
    shipped_sweeps,
    shipped_winners,
    why_open,
)
from autotune.table.roots import SITE, extra_roots
from autotune.table.store import CLOSE
from autotune.tuning import why_unwritable
from autotune.tuning_command import naming_options
from autotune.units import count_text

# No index has the distribution: its extras are installed from the source.
INSTALL_GPU: Final = 'pip install ".[gpu]" in the clone'
INSTALL_CUDNN: Final = 'pip install ".[cudnn]" in the clone'


# The outcome of a check: a mark, a text, and the command or advice that repairs what is wrong.
Answer = tuple[bool, str] | tuple[bool, str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report; ``fix`` is empty if nothing is wrong."""

    subject: str
    ok: bool
    text: str
    fix: str = ""


def examine() -> list[Finding]:
    """Run all checks; never raises."""
    return [Finding(subject, *_guarded(check)) for subject, check in CHECKS.items()]


def _guarded(check: Callable[[], Answer]) -> Answer:
    try:
        return check()
    except (Exception, SystemExit) as error:  # whatever is broken here is what the report is for
        return False, " ".join(str(error).split()) or type(error).__name__


def _system() -> Answer:
    is_linux = sys.platform == "linux"
    text = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores"
    return is_linux, text, "" if is_linux else "Triton needs Linux; on Windows use WSL2"


def _python() -> Answer:
    is_new = sys.version_info >= (3, 11)
    return is_new, f"{platform.python_version()} at {sys.executable}", "" if is_new else "use 3.11 to 3.14"


def _torch() -> Answer:
    tools = platforms.toolchain()
    if not tools.torch:
        return False, "not installed", INSTALL_GPU
    if (reason := why_no_import("torch")) is not None:
        return False, f"{tools.torch} cannot be imported: {reason}", f"{INSTALL_GPU}, with --force-reinstall"
    return True, f"{tools.torch}, built for {tools.cuda or 'the CPU'}"


def _triton() -> Answer:
    tools = platforms.toolchain()
    if not tools.triton:
        return False, "not installed", INSTALL_GPU
    if (reason := why_no_import("triton")) is not None:
        return False, f"{tools.triton} cannot be imported: {reason}", f"{INSTALL_GPU}, with --force-reinstall"
    if tools.triton.startswith("3.6") and _numpy_version() >= (2, 4):
        return False, f"{tools.triton}: its interpreter fails on numpy 2.4 and newer", "pip install 'numpy<2.4'"
    return True, f"{tools.triton}, ptxas {tools.ptxas or 'not found'}"


def _numpy_version() -> tuple[int, ...]:
    return tuple(int(part) for part in installed_version("numpy").split(".")[:2])


def _gpu() -> Answer:
    if not platforms.has_gpu():
        fix = "none needed to replay sweeps, look up and export; to measure, run on a machine with a GPU and its driver"
        return False, "none visible", fix
    device = platforms.current_device()
    cap = f", {device.power_cap_watts} W" if device.power_cap_watts else ""
    return True, f"{device.name} ({device.arch}), {device.sm_count} SMs, {device.memory_mib} MiB{cap}"


def _nvml() -> Answer:
    if importlib.util.find_spec("pynvml") is None:
        return False, "clocks and other processes are not recorded", "pip install nvidia-ml-py"
    driver = platforms.toolchain().driver
    return True, f"driver {driver}" if driver else "installed; no NVIDIA driver here"


def _cudnn() -> Answer:
    if version := installed_version("nvidia-cudnn-frontend"):
        return True, f"Python frontend {version}"
    return False, "its Python frontend is not installed: paged attention is not compared with cuDNN", INSTALL_CUDNN


def _memory_checker() -> Answer:
    from autotune.lab.machine.cuda_tools import why_no_sanitizer

    if not platforms.has_gpu() or not platforms.platform_here().memory_checker:
        return False, "compute-sanitizer needs an NVIDIA GPU"
    reason = why_no_sanitizer()
    return reason is None, reason or "compute-sanitizer works: python -m benchmarks.memcheck"


def _interpreter() -> Answer:
    if all(importlib.util.find_spec(name) for name in ("triton", "torch")):
        if broken := [name for name in ("triton", "torch") if why_no_import(name) is not None]:
            return False, f"needs {' and '.join(broken)}, which cannot be imported", INSTALL_GPU
        return True, "numbers can be checked without a GPU (fp16, fp32)"
    return False, "needs torch and triton", INSTALL_GPU


def _folder() -> Answer:
    if is_shipped(home()):
        return False, f"{home()} is {NOT_WRITTEN}", "export AUTOTUNE_HOME=another folder"
    if (reason := why_open(home())) is not None:
        return False, f"{home()}: {reason}", f"{CLOSE} {shlex.quote(str(home()))}"
    problem = why_unwritable(home())
    if problem is None:
        return True, f"{home()} is writable"
    return False, f"{home()} is not writable: {problem}", "export AUTOTUNE_HOME=a folder you can write"


def _cache() -> Answer:
    """Look at the folder of Triton's binaries, as ``triton.knobs`` finds it."""
    base = os.environ.get("TRITON_HOME") or Path.home()
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path(base, ".triton", "cache"))
    if (problem := why_unwritable(folder)) is None:
        return True, f"{folder} is writable"
    fix = "export TRITON_CACHE_DIR=a folder you can write"
    return False, f"{folder} is not writable: {problem}; no kernel is compiled into it", fix


def _user_tables() -> Answer:
    try:
        counts = {name: len(Store(home()).trials(name)) for name in operation_names()}
    except TableError as error:
        return False, str(error), "move the damaged file away, then search again"
    return True, ", ".join(f"{count_text(count, 'trial')} of {name}" for name, count in counts.items())


def _shipped_tables() -> Answer:
    counts = {name: (len(shipped_winners(name)), len(shipped_sweeps(name))) for name in operation_names()}
    texts = (
        f"{name}: {count_text(winners, 'winner')}, {count_text(sweeps, 'sweep')}"
        for name, (winners, sweeps) in counts.items()
    )
    return any(winners for winners, _ in counts.values()), ", ".join(texts)


def _other_tables() -> Answer:
    found: list[TableError] = []
    counts = {
        root: sum(len(Store(root.path, on_damaged=found.append).winners(name)) for name in operation_names())
        for root in extra_roots(found.append)
    }
    if found:
        return False, str(found[0]), f"whoever installed the tables can: {SITE} and packages name them"
    texts = (f"{root.title}: {count_text(count, 'winner')} in {root.path}" for root, count in counts.items())
    return True, "; ".join(texts) or f"no site's ({SITE}), no package's"


def _portfolios() -> Answer:
    found: dict[str, list[str]] = {}
    for row in (row for name in operation_names() for row in shipped_portfolios(name)):
        found.setdefault(row.device.arch, []).append(f"{row.operation}/{row.implementation}")
    texts = (
        f"{arch}: {count_text(len(rows), 'recorded shape')} of {', '.join(dict.fromkeys(rows))}"
        for arch, rows in found.items()
    )
    return True, "; ".join(texts) or "none: defaults are those of the spaces"


def _outside_rows() -> Answer:
    def skip(damaged: TableError) -> None: ...  # which the lines above name

    found = Store(home()).outsiders(on_damaged=skip)
    found += [each for name in operation_names() for each in shipped_outsiders(name, on_damaged=skip)]
    if not found:
        return True, "every row is of today's spaces"
    example = f"{found[0].where}, row {found[0].row}: {found[0].reason}"
    owners = sorted({each.operation for each in found} & set(operation_names()))
    lists = "".join(f"; `autotune show --all {naming_options(name)}` lists them" for name in owners)
    return True, f"{count_text(len(found), 'row')} kept and never served, for example {example}{lists}"


def _shipped_toolchain() -> Answer:
    rows = [trial for name in operation_names() for trial in shipped_winners(name)]
    found = sorted({f"{t.device.name}: triton {t.toolchain.triton}, torch {t.toolchain.torch}" for t in rows})
    here = platforms.toolchain().triton
    same = not here or all(trial.toolchain.triton == here for trial in rows)
    return True, f"measured on {'; '.join(found) or 'nothing'}" + ("" if same else f"; triton here is {here}")


def _shipped_source() -> Answer:
    rows = [
        (each, shipped_winners(each.operation, implementation=each.name))
        for name in operation_names()
        for each in implementations_of(name)
    ]
    stale = [each.title for each, found in rows if not all(map(each.is_source_of, found))]
    if stale:
        return False, f"changed since the shipped winners of {', '.join(stale)}", "autotune search"
    # A library's winners count by the version in their rows: another one here is noted, and needs no repair.
    others = [
        f"; those of {each.title} with another {each.library} than here"
        for each, found in rows
        if each.library is not None
        and installed_version(each.library)
        and any(trial.source_hash != each.source_hash for trial in found)
    ]
    return True, f"shipped winners were measured with this source{''.join(others)}"


def _registered() -> Answer:
    names = [f"{name} ({', '.join(implementation_names(name)) or 'nothing'})" for name in operation_names()]
    if broken := broken_registrations():
        fix = "repair or uninstall what registers them; everything else works without"
        return False, f"cannot be loaded, and left out: {'; '.join(broken)}", fix
    if not (strays := stray_implementations()):
        return True, ", ".join(names)
    fix = f"register them for one of {', '.join(operation_names())}, or their operation"
    return False, f"of no operation that is registered: {', '.join(strays)}", fix


CHECKS: Final[dict[str, Callable[[], Answer]]] = {
    "system": _system,
    "python": _python,
    "torch": _torch,
    "triton": _triton,
    "gpu": _gpu,
    "nvml": _nvml,
    "cudnn": _cudnn,
    "memory checker": _memory_checker,
    "interpreter": _interpreter,
    "registered": _registered,
    "folder": _folder,
    "compile cache": _cache,
    "your tables": _user_tables,
    "other tables": _other_tables,
    "shipped tables": _shipped_tables,
    "portfolios": _portfolios,
    "outside rows": _outside_rows,
    "toolchain": _shipped_toolchain,
    "kernel source": _shipped_source,
}
