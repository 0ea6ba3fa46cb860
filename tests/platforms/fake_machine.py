"""Stand-ins for torch, pynvml and a board: what the GPU's machine answers, and what it refuses to."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

UUID = "GPU-1234"
NOT_SUPPORTED, NOT_FOUND = 3, 6  # nvml.h


class NVMLError(Exception):
    """The error that pynvml raises for questions that a board does not answer."""

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
            "nvmlDeviceGetProcessUtilization": refuse(NOT_SUPPORTED),
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


def refuse(value: int) -> Callable[..., Any]:
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


def running(*pids: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid) for pid in pids]


def samples(**utilization: int) -> list[SimpleNamespace]:
    """NVML's samples of processes named ``pid_1`` and so on."""
    return [SimpleNamespace(pid=int(name.removeprefix("pid_")), smUtil=used) for name, used in utilization.items()]
