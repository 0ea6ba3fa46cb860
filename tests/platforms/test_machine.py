"""The GPU and the toolchain are read as tables identify them, and whatever cannot be read is left out."""

import importlib.metadata
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.errors import MissingDependencyError
from autotune.platforms import nvidia
from autotune.timing import Stopwatch
from autotune.trial import Conditions, Policy
from autotune.version import VERSION

UUID = "GPU-1234"
CACHES = (platforms._read_device, platforms.toolchain, nvidia._nvml_handle)


NOT_SUPPORTED, NOT_FOUND = 3, 6  # nvml.h


class NVMLError(Exception):
    """What pynvml raises for questions that a board does not answer."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class FakeNVML(SimpleNamespace):
    """A stand-in for pynvml and one board; a name in ``refused`` raises when it is asked.

    An answer that is a function is called with the question's arguments.
    """

    def __init__(self, *refused: str, **answers: Any) -> None:
        self.asked: list[str] = []
        answers = {
            "nvmlInit": None,
            "nvmlDeviceGetHandleByUUID": "board",
            "nvmlSystemGetDriverVersion": "580.1",
            "nvmlDeviceGetPowerManagementLimit": 700_000,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=143771 * 2**20),
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "board",
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1)],
            "nvmlDeviceGetProcessUtilization": _refuse(NOT_SUPPORTED),
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetTemperature": 41,
        } | answers
        calls = {name: self._answer(name, value, name in refused) for name, value in answers.items()}
        constants = {"NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0, "NVML_SUCCESS": 0}
        super().__init__(**calls, **constants, NVML_ERROR_NOT_FOUND=NOT_FOUND)

    def _answer(self, name: str, value: Any, is_refused: bool) -> Any:
        def answer(*arguments: object) -> Any:
            self.asked.append(f"{name} {arguments}")
            if is_refused:
                raise NVMLError(NOT_SUPPORTED)
            return value(*arguments) if callable(value) else value

        return answer


def _refuse(value: int) -> Callable[..., Any]:
    def refuse(*arguments: object) -> Any:
        raise NVMLError(value)

    return refuse


def fake_torch(*, available: bool = True, hip: str | None = None, **properties: Any) -> SimpleNamespace:
    board = {
        "name": "NVIDIA H200",
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
        "total_memory": 150_000 * 2**20,
        "uuid": UUID,
    } | properties
    cuda = SimpleNamespace(
        is_available=lambda: available,
        is_initialized=lambda: False,
        get_device_properties=lambda index: SimpleNamespace(**board),
    )
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda=None if hip else "13.0", hip=hip))


def install(patch: pytest.MonkeyPatch, **libraries: object) -> None:
    for name, library in libraries.items():
        patch.setitem(sys.modules, name, library)


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(platforms, "_bindings", None)
    for cached in CACHES:
        cached.cache_clear()
    yield
    for cached in CACHES:
        cached.cache_clear()


def test_a_device_is_what_torch_and_nvml_say(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNVML()
    install(monkeypatch, torch=fake_torch(), pynvml=nvml)
    assert platforms.current_device() == Device(
        name="NVIDIA H200", arch="sm_90", sm_count=132, memory_mib=143771, power_cap_watts=700
    )
    assert f"nvmlDeviceGetHandleByUUID ('{UUID}',)" in nvml.asked


def test_torch_may_name_a_board_without_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNVML()
    install(monkeypatch, torch=fake_torch(uuid=UUID.removeprefix("GPU-")), pynvml=nvml)
    platforms.current_device()
    assert f"nvmlDeviceGetHandleByUUID ('{UUID}',)" in nvml.asked


@pytest.mark.parametrize(
    ("nvml", "memory", "cap"),
    [
        (None, 150_000, None),
        (FakeNVML("nvmlInit"), 150_000, None),
        (FakeNVML("nvmlDeviceGetPowerManagementLimit"), 143771, None),
        (FakeNVML("nvmlDeviceGetMemoryInfo"), 150_000, 700),
    ],
    ids=["no pynvml", "no driver", "no cap", "no memory"],
)
def test_what_nvml_does_not_say_is_left_out(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNVML | None, memory: int, cap: int | None
) -> None:
    install(monkeypatch, torch=fake_torch(), pynvml=nvml)
    device = platforms.current_device()
    assert (device.memory_mib, device.power_cap_watts) == (memory, cap)


def test_an_amd_device_is_named_by_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch(hip="6.4", name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-")
    install(monkeypatch, torch=torch, pynvml=None)
    device = platforms.current_device()
    assert (device.name, device.arch, device.power_cap_watts) == ("AMD Instinct MI300X", "gfx942", None)
    assert platforms.Watch(None).end() == Conditions()


def load_driver(monkeypatch: pytest.MonkeyPatch, file: str = "/dev/null", *vendors: str) -> None:
    """On a Linux where these vendors' drivers, NVIDIA's by default, are loaded if the file exists, and hide nothing."""
    monkeypatch.setattr(sys, "platform", "linux")
    for name, vendor in platforms.PLATFORMS.items():
        monkeypatch.setattr(type(vendor), "driver_files", (file,) if name in (vendors or ("nvidia",)) else ())
        for variable in vendor.visibility:
            monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("vendor", "variable", "value", "expected"),
    [
        ("nvidia", "CUDA_VISIBLE_DEVICES", "", False),
        ("nvidia", "CUDA_VISIBLE_DEVICES", "-1", False),
        ("nvidia", "CUDA_VISIBLE_DEVICES", " ,0", False),
        ("nvidia", "CUDA_VISIBLE_DEVICES", "1", True),
        ("nvidia", "CUDA_VISIBLE_DEVICES", "GPU-8932f937", True),
        ("nvidia", "HIP_VISIBLE_DEVICES", "", True),
        ("amd", "HIP_VISIBLE_DEVICES", "", False),
        ("amd", "ROCR_VISIBLE_DEVICES", "", False),
        ("amd", "ROCR_VISIBLE_DEVICES", "0,1", True),
    ],
)
def test_a_driver_whose_gpus_are_all_hidden_is_none(
    monkeypatch: pytest.MonkeyPatch, vendor: str, variable: str, value: str, expected: bool
) -> None:
    load_driver(monkeypatch, "/dev/null", vendor)
    assert platforms.has_driver()
    monkeypatch.setenv(variable, value)
    assert platforms.has_driver() == expected


def test_a_hidden_gpu_beside_another_vendors_hides_that_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    load_driver(monkeypatch, "/dev/null", "nvidia", "amd")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert platforms.has_driver()
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "")
    assert not platforms.has_driver()


def test_elsewhere_than_on_linux_torch_alone_says_if_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    load_driver(monkeypatch)
    monkeypatch.setattr(sys, "platform", "win32")
    assert not platforms.has_driver()
    install(monkeypatch, torch=fake_torch(), pynvml=None)
    assert platforms.has_gpu()
    install(monkeypatch, torch=fake_torch(available=False))
    assert not platforms.has_gpu()


def test_without_a_driver_torch_is_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    load_driver(monkeypatch, "/nowhere/nvidiactl")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not platforms.has_gpu()
    install(monkeypatch, torch=fake_torch(), pynvml=None)
    assert not platforms.has_gpu()
    load_driver(monkeypatch)
    assert platforms.has_gpu()


def test_no_torch_and_no_gpu_are_missing_dependencies(monkeypatch: pytest.MonkeyPatch) -> None:
    load_driver(monkeypatch)
    install(monkeypatch, torch=None)
    assert not platforms.has_gpu()
    with pytest.raises(MissingDependencyError, match="torch is not installed"):
        platforms.current_device()
    install(monkeypatch, torch=fake_torch(available=False))
    assert not platforms.has_gpu()
    with pytest.raises(MissingDependencyError, match="no GPU is visible"):
        platforms.current_device()
    install(monkeypatch, torch=fake_torch(), pynvml=None)
    assert platforms.has_gpu()
    assert platforms.current_device().name == "NVIDIA H200"  # a refusal was not remembered


def test_every_gpu_of_a_process_is_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models in one process: each index is read once, and none stands for the current GPU but while it is."""
    torch, read = fake_torch(), []
    boards = (("NVIDIA H200", 9, 132), ("NVIDIA A100-SXM4-80GB", 8, 108))

    def properties(index: int) -> SimpleNamespace:
        read.append(index)
        name, major, count = boards[index]
        return SimpleNamespace(
            name=name, major=major, minor=0, multi_processor_count=count, total_memory=2**37, uuid=f"GPU-{index}"
        )

    torch.cuda.get_device_properties = properties
    torch.cuda.is_initialized = lambda: True
    torch._C = SimpleNamespace(_cuda_getDevice=lambda: 1)
    install(monkeypatch, torch=torch, pynvml=None)
    first, second = platforms.current_device(0), platforms.current_device(1)
    assert [(first.name, first.arch), (second.name, second.arch)] == [
        ("NVIDIA H200", "sm_90"),
        ("NVIDIA A100-SXM4-80GB", "sm_80"),
    ]
    asked = len(read)
    assert platforms.current_device() is second
    torch._C._cuda_getDevice = lambda: 0
    assert platforms.current_device() is first
    assert platforms.current_device(1) is second
    assert len(read) == asked


def test_asking_for_the_device_here_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch()
    torch._C = SimpleNamespace(_cuda_getDevice=lambda: pytest.fail("initialises CUDA"))
    install(monkeypatch, torch=torch, pynvml=FakeNVML())
    assert platforms.current_device() == NVIDIA_H200


FORK: Final = """
import os, sys
from types import SimpleNamespace
from autotune import platforms
first = os.getpid()
initialized = False
cuda = SimpleNamespace(is_initialized=lambda: initialized and os.getpid() == first)  # as torch says of a bad fork
sys.modules["torch"] = SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_getDevice=lambda: 3))
found = [platforms.current_index()]
initialized = True
found += [platforms.current_index(), platforms.current_index()]
if os.fork() == 0:
    os._exit(10 + platforms.current_index())
found += [os.waitstatus_to_exitcode(os.wait()[1]) - 10, platforms.current_index()]
print(found)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_the_current_gpu_is_asked_for_once_torch_uses_one_and_not_in_a_fork() -> None:
    ran = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[0, 3, 3, 0, 3]", ran.stderr


def test_the_processor_is_named_with_the_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 4}, raising=False)
    name, cores = platforms.processor_name().rsplit(", ", 1)
    assert name.strip()
    assert cores == "3 cores"


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        (0x0, ""),
        (0x1, ""),
        (0x4, "power"),
        (0x20 | 0x40, "thermal"),
        (0x4 | 0x8 | 0x80, "hardware, power, power brake"),
    ],
)
def test_conditions_name_what_holds_the_clocks_back(monkeypatch: pytest.MonkeyPatch, reasons: int, text: str) -> None:
    install(monkeypatch, torch=fake_torch(), pynvml=FakeNVML(nvmlDeviceGetCurrentClocksEventReasons=reasons))
    assert platforms.Watch(None).end() == Conditions(1980, 1980, 41, text, contended=False)


@pytest.mark.parametrize("is_worse_first", [True, False])
def test_of_two_readings_the_worse_counts(monkeypatch: pytest.MonkeyPatch, is_worse_first: bool) -> None:
    def turn(better: Any, worse: Any) -> Callable[..., Any]:
        answers = iter((worse, better) if is_worse_first else (better, worse))
        return lambda *arguments: next(answers)

    clocks = {1: turn(1980, 1200), 2: turn(3201, 2619)}
    nvml = FakeNVML(
        nvmlDeviceGetClockInfo=lambda handle, kind: clocks[kind](),
        nvmlDeviceGetTemperature=turn(41, 83),
        nvmlDeviceGetCurrentClocksEventReasons=turn(0x4, 0x20 | 0x8),
        nvmlDeviceGetComputeRunningProcesses=turn(running(1), running(1, 2)),
    )
    install(monkeypatch, torch=fake_torch(), pynvml=nvml)
    worst = Conditions(1200, 2619, 83, "hardware, power, thermal", contended=True)
    assert platforms.Watch(None).end() == worst


def running(*pids: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid) for pid in pids]


def samples(**utilization: int) -> list[SimpleNamespace]:
    """NVML's samples of processes named ``pid_1`` and so on."""
    return [SimpleNamespace(pid=int(name.removeprefix("pid_")), smUtil=used) for name, used in utilization.items()]


@pytest.mark.parametrize(
    ("own_pid", "utilization", "contended"),
    [
        (1, samples(pid_1=90), False),
        (1, samples(pid_1=90, pid_2=0), False),  # it holds a context, and rests
        (1, samples(pid_1=90, pid_2=5), True),
        (1, _refuse(NOT_FOUND), False),  # nobody computed
        (1, _refuse(NOT_SUPPORTED), True),  # two processes are listed: more is not known
        (None, samples(pid_1=90), True),  # which of them we are is not known
    ],
)
def test_contention_is_another_process_that_computes(
    monkeypatch: pytest.MonkeyPatch, own_pid: int | None, utilization: Any, contended: bool
) -> None:
    nvml = FakeNVML(nvmlDeviceGetComputeRunningProcesses=running(1, 2), nvmlDeviceGetProcessUtilization=utilization)
    install(monkeypatch, torch=fake_torch(), pynvml=nvml)
    assert platforms.Watch(own_pid).end().contended is contended


def test_contention_is_asked_since_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((1000.0, 1500.0))
    monkeypatch.setattr(time, "time", lambda: next(now))
    nvml = FakeNVML(nvmlDeviceGetProcessUtilization=samples(pid_2=5))
    install(monkeypatch, torch=fake_torch(), pynvml=nvml)
    assert platforms.Watch(1).end().contended
    assert "nvmlDeviceGetProcessUtilization ('board', 999000000)" in nvml.asked  # microseconds, one sample earlier


@pytest.mark.parametrize(
    ("before", "after", "own_pid"),
    [
        ({}, {"board": (4711,)}, 4711),  # the host's number for us
        ({"board": (7,), "other": (8,)}, {"board": (7, 4711), "other": (8,)}, 4711),
        ({"board": (12,)}, {"board": (12,)}, 12),  # our context was there before
        ({"board": (7,)}, {"board": (7, 4711, 4712)}, None),  # another came at the same moment
        ({"board": (7,)}, {"board": (7,)}, None),  # a container is not shown its own processes
        ({}, {"other": (4711,)}, None),
    ],
)
def test_our_process_is_the_one_that_appears_with_our_context(
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, tuple[int, ...]],
    after: dict[str, tuple[int, ...]],
    own_pid: int | None,
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 12)
    listed = [before]
    nvml = FakeNVML(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=("board", "other").__getitem__,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: running(*listed[-1].get(handle, ())),
    )
    torch = fake_torch()
    ask_torch = torch.cuda.get_device_properties

    def properties(index: int) -> Any:
        assert listed[-1] is after, "asked before: that may create the context"
        return ask_torch(index)

    torch.cuda.get_device_properties = properties
    torch.zeros = lambda size, device: listed.append(after)
    install(monkeypatch, torch=torch, pynvml=nvml)
    assert platforms.open_context() == own_pid
    assert listed == [before, after]
    nvidia._nvml_handle.cache_clear()
    install(monkeypatch, pynvml=None)
    assert platforms.open_context() is None


def test_conditions_that_a_board_does_not_tell_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = [name for name in vars(FakeNVML()) if name.startswith("nvmlDeviceGet")]
    told = "nvmlDeviceGetHandleByUUID"
    nvml = FakeNVML(*(name for name in questions if name != told))
    install(monkeypatch, torch=fake_torch(), pynvml=nvml)
    assert platforms.Watch(1).end() == Conditions()
    nvidia._nvml_handle.cache_clear()
    install(monkeypatch, pynvml=None)
    assert platforms.Watch(1).end() == Conditions()


def test_the_toolchain_names_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"triton": "3.6.0", "torch": "2.13.0"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    install(monkeypatch, torch=fake_torch(), pynvml=FakeNVML())
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/opt/ptxas")
    asked: list[tuple[str, ...]] = []

    def run(command: tuple[str, ...], **options: object) -> SimpleNamespace:
        asked.append(command)
        return SimpleNamespace(stdout="Cuda compilation tools, release 12.8, V12.8.93\n")

    monkeypatch.setattr(subprocess, "run", run)
    tools = platforms.toolchain()
    assert (tools.tool, tools.triton, tools.ptxas) == (VERSION, "3.6.0", "12.8.93")
    assert (tools.torch, tools.cuda, tools.driver) == ("2.13.0", "13.0", "580.1")
    assert asked == [("/opt/ptxas", "--version")]


def test_absent_parts_of_the_toolchain_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_version(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", no_version)
    monkeypatch.setattr(importlib.metadata, "distribution", no_version)
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    install(monkeypatch, torch=None, pynvml=None)
    tools = platforms.toolchain()
    assert (tools.tool, tools.triton, tools.ptxas) == (VERSION, "", "")
    assert (tools.torch, tools.cuda, tools.driver) == ("", "", "")


def test_a_ptxas_that_does_not_run_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/nonexistent/ptxas", "/bin/false"):
        monkeypatch.setenv("TRITON_PTXAS_PATH", path)
        assert nvidia.ptxas_version() == ""


@pytest.mark.parametrize(
    ("errors", "is_alive"),
    [
        ([], True),
        ([RuntimeError("an error that was left behind")], True),
        ([RuntimeError("unknown error")] * 2, False),
        ([MemoryError("the GPU is full")], True),
    ],
)
def test_a_context_is_dead_when_every_call_fails(
    monkeypatch: pytest.MonkeyPatch, errors: list[Exception], is_alive: bool
) -> None:
    left = list(errors)

    def synchronize(index: int) -> None:
        if left:
            raise left.pop(0)

    tensor = SimpleNamespace(item=lambda: 1.0)
    tensor.add_ = lambda value: tensor
    cuda = SimpleNamespace(synchronize=synchronize, OutOfMemoryError=MemoryError)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, zeros=lambda count, device: tensor))
    assert platforms.is_context_alive() is is_alive
    assert left == []


@pytest.mark.gpu
def test_gpu_every_device_is_read_watched_and_timed() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    for index in range(torch.cuda.device_count()):
        device = platforms.current_device(index)
        assert device.name == torch.cuda.get_device_properties(index).name
        assert device.architecture.platform == platforms.platform_here().name
        watch = platforms.Watch(platforms.open_context(index), index)
        with torch.cuda.device(index):
            assert platforms.current_device() == device
            buffer = torch.zeros(2**20, device="cuda")
            with Stopwatch([partial(buffer.add_, 1.0)], Policy()) as stopwatch:
                assert 0.0 < stopwatch.warm_up() < 1000.0
            _, peak, kept = platforms.platform_here().measure_bytes(buffer.clone)
            assert peak == kept == buffer.nbytes
        assert (watch.end().sm_clock_mhz or 1) > 0
        assert platforms.is_context_alive(index)
