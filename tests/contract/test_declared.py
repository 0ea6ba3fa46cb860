"""The declarations of an implementation hold: its defaults, its sources, and the binaries that it compiles ahead."""

from typing import Any

import pytest
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from autotune.device import ARCHITECTURES, architecture
from autotune.errors import AutotuneError
from autotune.executor.compiler import target_driver
from autotune.implementation import Implementation
from autotune.registry import get_implementation, get_operation, load_definition, load_kernel
from tests.contract.sampling import cases_of
from tests.contract.suite import data_of, device_of, each_implementation, each_of_ours


@each_implementation
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_default_is_valid_wherever_the_shape_is_supported(implementation: Implementation[Any], arch: str) -> None:
    device, space = device_of(arch), implementation.space
    shapes = [*data_of(implementation.operation).compiled]
    for shape in shapes:
        if implementation.supports(shape, device) is None:
            assert space.why_invalid(space.default(shape, device), shape, device) is None, shape
        else:
            with pytest.raises(AutotuneError):
                space.default(shape, device)


@each_implementation
def test_names_lead_to_it(implementation: Implementation[Any]) -> None:
    assert get_implementation(implementation.operation, implementation.name) is implementation
    assert all(type(shape) is get_operation(implementation.operation).shape_class for shape in compiled(implementation))
    assert len(implementation.source_hash) == 64
    assert all(hasattr(load_kernel(implementation.operation, implementation.name), name) for name in METHODS)


METHODS = ("launch", "warmup", "bind")
NOTED = 4  # one of so many cases is noted


def compiled(implementation: Implementation[Any]) -> tuple[Any, ...]:
    return data_of(implementation.operation).compiled


@each_of_ours
def test_as_many_binaries_are_compiled_ahead_as_a_launch_runs(
    implementation: Implementation[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compiled or launched: what would be is noted by name, from both sides."""
    noted: list[str] = []

    def note(function: Any, *arguments: Any, **named: Any) -> str:
        noted.append(function.fn.__name__)
        return noted[-1]

    monkeypatch.setattr(driver, "_active", target_driver(architecture("sm_90")))
    monkeypatch.setattr(JITFunction, "run", note)
    definition = load_definition(implementation.operation)
    kernel = load_kernel(implementation.operation, implementation.name)
    counts = set()
    for case in cases_of(implementation.operation, implementation.name)[::NOTED]:
        inputs = definition.make_inputs(case.shape, seed=0, device="cpu")
        for every_output in (False, True):
            noted.clear()
            kernel.launch(case.config, inputs, definition.empty_outputs(inputs)[: None if every_output else 1])
            launched = tuple(noted)
            noted.clear()
            assert tuple(kernel.warmup(case.config, case.shape, every_output=every_output)) == launched == tuple(noted)
            counts.add(len(launched))
    assert 0 not in counts
