"""The implementations that the contract is asked of, all of this package, and what tests know of each."""

import importlib
import importlib.util
from typing import Any, Final

import pytest

from autotune import registry
from autotune.device import Device
from autotune.implementation import Implementation
from tests.contract.operations.data import OperationData
from tests.contract.planting import Planted

IMPLEMENTATIONS: Final[list[Implementation[Any]]] = [
    implementation
    for name in registry.operation_names()
    if registry.operation_reference(name).startswith("autotune.")  # a conftest may have registered a test's own
    for implementation in registry.implementations_of(name)
]
OURS: Final = [implementation for implementation in IMPLEMENTATIONS if implementation.is_ours]
each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=lambda each: each.title)
each_of_ours = pytest.mark.parametrize("implementation", OURS, ids=lambda each: each.title)


def data_of(operation: str) -> OperationData:
    """Return the problems of an operation and what is true of them: ``tests.contract.operations.OPERATION``."""
    data: OperationData = importlib.import_module(f"tests.contract.operations.{operation}").DATA
    return data


def planted_in(implementation: Implementation[Any]) -> Planted:
    """Return its gates and mutants: ``tests.contract.implementations.OPERATION_IMPLEMENTATION``, none without it."""
    module = f"tests.contract.implementations.{implementation.operation}_{implementation.name}"
    if importlib.util.find_spec(module) is None:
        return Planted({}, ())
    planted: Planted = importlib.import_module(module).PLANTED
    return planted


def device_of(arch: str) -> Device:
    """Return a device of which the architecture matters, and the number of SMs a little."""
    return Device(name=arch, arch=arch, sm_count=132, memory_mib=1)
