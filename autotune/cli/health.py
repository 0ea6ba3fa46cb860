"""Checks of this machine and installation, each with the command that repairs it."""

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from autotune import platforms
from autotune.errors import TableError
from autotune.registry import implementations_of, operation_names
from autotune.table import Store, home, shipped_outsiders, shipped_sweeps, shipped_winners
from autotune.tuning import why_unwritable
from autotune.units import count_text

# No index has the distribution: its extras are installed from the source.
INSTALL_GPU: Final = 'pip install ".[gpu]" in the clone'
INSTALL_CUDNN: Final = 'pip install ".[cudnn]" in the clone'


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report; ``fix`` is a command or an advice, empty if nothing is wrong."""

    subject: str
    ok: bool
    text: str
    fix: str = ""


def examine() -> list[Finding]:
    """Run all checks; never raises."""
    checks: tuple[Callable[[], Finding], ...] = (
        _system,
        _python,
        _torch,
        _triton,
        _gpu,
        _nvml,
        _cudnn,
        _memory_checker,
        _interpreter,
        _folder,
        _user_tables,
        _shipped_tables,
        _outside_rows,
        _shipped_toolchain,
        _shipped_source,
    )
    return [_guarded(check) for check in checks]


def _guarded(check: Callable[[], Finding]) -> Finding:
    subject = check.__name__.strip("_").replace("_", " ")
    try:
        return check()
    except Exception as error:  # whatever is broken here is what the report is for
        return Finding(subject, False, " ".join(str(error).split()) or type(error).__name__)


def _system() -> Finding:
    text = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores"
    fix = "" if sys.platform == "linux" else "Triton needs Linux; on Windows use WSL2"
    return Finding("system", not fix, text, fix)


def _python() -> Finding:
    text = f"{platform.python_version()} at {sys.executable}"
    return Finding(
        "python", sys.version_info >= (3, 11), text, "" if sys.version_info >= (3, 11) else "use 3.11 to 3.14"
    )


def _torch() -> Finding:
    tools = platforms.toolchain()
    if not tools.torch:
        return Finding("torch", False, "not installed", INSTALL_GPU)
    return Finding("torch", True, f"{tools.torch}, built for {tools.cuda or 'the CPU'}")


def _triton() -> Finding:
    tools = platforms.toolchain()
    if not tools.triton:
        return Finding("triton", False, "not installed", INSTALL_GPU)
    if tools.triton.startswith("3.6") and _numpy_version() >= (2, 4):
        fix = "pip install 'numpy<2.4'"
        return Finding("triton", False, f"{tools.triton}: its interpreter fails on numpy 2.4 and newer", fix)
    return Finding("triton", True, f"{tools.triton}, ptxas {tools.ptxas or 'not found'}")


def _numpy_version() -> tuple[int, ...]:
    import numpy

    return tuple(int(part) for part in numpy.__version__.split(".")[:2])


def _gpu() -> Finding:
    if not platforms.has_gpu():
        fix = "none needed to replay sweeps, look up and export; to measure, run on a machine with a GPU and its driver"
        return Finding("gpu", False, "none visible", fix)
    device = platforms.current_device()
    cap = f", {device.power_cap_watts} W" if device.power_cap_watts else ""
    return Finding("gpu", True, f"{device.name} ({device.arch}), {device.sm_count} SMs, {device.memory_mib} MiB{cap}")


def _nvml() -> Finding:
    if importlib.util.find_spec("pynvml") is None:
        return Finding("nvml", False, "clocks and other processes are not recorded", "pip install nvidia-ml-py")
    driver = platforms.toolchain().driver
    return Finding("nvml", True, f"driver {driver}" if driver else "installed; no NVIDIA driver here")


def _cudnn() -> Finding:
    version = _cudnn_frontend_version()
    if not version:
        text = "its Python frontend is not installed: paged attention is not compared with cuDNN"
        return Finding("cudnn", False, text, INSTALL_CUDNN)
    return Finding("cudnn", True, f"Python frontend {version}")


def _cudnn_frontend_version() -> str:
    try:
        return importlib.metadata.version("nvidia-cudnn-frontend")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _memory_checker() -> Finding:
    from autotune.lab.machine.cuda_tools import why_no_sanitizer

    if not platforms.has_gpu() or not platforms.platform_here().memory_checker:
        return Finding("memory checker", False, "compute-sanitizer needs an NVIDIA GPU")
    reason = why_no_sanitizer()
    text = "compute-sanitizer works: python -m benchmarks.memcheck" if reason is None else reason
    return Finding("memory checker", reason is None, text)


def _interpreter() -> Finding:
    ok = importlib.util.find_spec("triton") is not None and importlib.util.find_spec("torch") is not None
    text = "numbers can be checked without a GPU (fp16, fp32)" if ok else "needs torch and triton"
    return Finding("interpreter", ok, text, "" if ok else INSTALL_GPU)


def _folder() -> Finding:
    root = home()
    problem = why_unwritable(root)
    if problem is None:
        return Finding("folder", True, f"{root} is writable")
    return Finding("folder", False, f"{root} is not writable: {problem}", "export AUTOTUNE_HOME=a folder you can write")


def _user_tables() -> Finding:
    try:
        counts = {name: len(Store(home()).trials(name)) for name in operation_names()}
    except TableError as error:
        return Finding("your tables", False, str(error), "move the damaged file away, then search again")
    text = ", ".join(f"{count_text(count, 'trial')} of {name}" for name, count in counts.items())
    return Finding("your tables", True, text)


def _shipped_tables() -> Finding:
    counts = {name: (len(shipped_winners(name)), len(shipped_sweeps(name))) for name in operation_names()}
    text = ", ".join(
        f"{name}: {count_text(winners, 'winner')}, {count_text(sweeps, 'sweep')}"
        for name, (winners, sweeps) in counts.items()
    )
    return Finding("shipped tables", any(winners for winners, _ in counts.values()), text)


def _outside_rows() -> Finding:
    def skip(damaged: TableError) -> None: ...  # which the lines above name

    found = Store(home()).outsiders(on_damaged=skip)
    found += [each for name in operation_names() for each in shipped_outsiders(name, on_damaged=skip)]
    if not found:
        return Finding("outside rows", True, "every row is of today's spaces")
    example = f"{found[0].where}, row {found[0].row}: {found[0].reason}"
    owners = sorted({each.operation for each in found} & set(operation_names()))
    lists = "".join(f"; `autotune show --all --operation {name}` lists them" for name in owners)
    count = count_text(len(found), "row")
    return Finding("outside rows", True, f"{count} kept and never served, for example {example}{lists}")


def _shipped_toolchain() -> Finding:
    rows = [trial for name in operation_names() for trial in shipped_winners(name)]
    found = sorted({f"{t.device.name}: triton {t.toolchain.triton}, torch {t.toolchain.torch}" for t in rows})
    here = platforms.toolchain().triton
    same = not here or all(trial.toolchain.triton == here for trial in rows)
    text = f"measured on {'; '.join(found) or 'nothing'}" + ("" if same else f"; triton here is {here}")
    return Finding("toolchain", True, text)


def _shipped_source() -> Finding:
    rows = [
        (each, shipped_winners(each.operation, implementation=each.name))
        for name in operation_names()
        for each in implementations_of(name)
    ]
    stale = [each.title for each, found in rows if not all(map(each.is_source_of, found))]
    if not stale:
        # A library's winners count by the version in their rows: another one here is noted, and needs no repair.
        others = [
            f"; those of {each.title} with another {each.library} than here"
            for each, found in rows
            if any(trial.source_hash != each.source_hash for trial in found)
        ]
        return Finding("kernel source", True, f"shipped winners were measured with this source{''.join(others)}")
    return Finding(
        "kernel source", False, f"changed since the shipped winners of {', '.join(stale)}", "autotune search"
    )
