"""The GPU is read as tables identify it, and whatever cannot be read is left out; is there one at all?"""

import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Final

import pytest

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.errors import MissingDependencyError
from autotune.timing import Stopwatch
from autotune.trial import Conditions, Policy
from tests.platforms.fake_machine import UUID, FakeNVML, fake_torch, install


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


def test_gpus_are_counted_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    load_driver(monkeypatch, "/nowhere/nvidiactl")
    assert platforms.gpu_count() == 0
    load_driver(monkeypatch)
    torch = fake_torch()
    torch.cuda.device_count = lambda: 3
    install(monkeypatch, torch=torch, pynvml=None)
    assert platforms.gpu_count() == 3
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(type(platforms.PLATFORMS["nvidia"]), "count_gpus", lambda self: 2)  # by the driver alone
    assert platforms.gpu_count() == 2


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
    here = [1]
    torch._C = SimpleNamespace(_cuda_getDevice=lambda: here[-1], _cuda_getDeviceCount=lambda: 2)
    install(monkeypatch, torch=torch, pynvml=None)
    first, second = platforms.current_device(0), platforms.current_device(1)
    assert [(first.name, first.arch), (second.name, second.arch)] == [
        ("NVIDIA H200", "sm_90"),
        ("NVIDIA A100-SXM4-80GB", "sm_80"),
    ]
    asked = len(read)
    assert platforms.current_device() is second
    here.append(0)
    assert platforms.current_device() is first
    assert platforms.current_device(1) is second
    assert len(read) == asked


def test_asking_for_the_device_here_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch()
    torch._C = SimpleNamespace(_cuda_getDevice=lambda: pytest.fail("initialises CUDA"))
    install(monkeypatch, torch=torch, pynvml=FakeNVML())
    assert platforms.current_device() == NVIDIA_H200


@pytest.mark.parametrize(("count", "found"), [(1, [0, 0, 0]), (2, [0, 1, 2])])
def test_the_only_gpu_is_the_current_one(monkeypatch: pytest.MonkeyPatch, count: int, found: list[int]) -> None:
    """Torch says which one is current where there are several; of one it need not be asked in every call."""
    torch, indices = fake_torch(), iter(range(3))
    torch.cuda.is_initialized = lambda: True
    torch._C = SimpleNamespace(_cuda_getDevice=lambda: next(indices), _cuda_getDeviceCount=lambda: count)
    install(monkeypatch, torch=torch, pynvml=None)
    assert [platforms.current_index() for _ in range(3)] == found


FORK: Final = """
import os, sys
from types import SimpleNamespace
from autotune import platforms
first = os.getpid()
initialized = False
cuda = SimpleNamespace(is_initialized=lambda: initialized and os.getpid() == first)  # as torch says of a bad fork
bindings = SimpleNamespace(_cuda_getDevice=lambda: 3, _cuda_getDeviceCount=lambda: 4)
sys.modules["torch"] = SimpleNamespace(cuda=cuda, _C=bindings)
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
