"""Compiles configs of every implementation for one architecture without a GPU; a process, since Triton has one target.

The first argument names the architecture; printed is a JSON object of the outcomes by title, with the binaries counted.
"""

import json
import random
import sys
from typing import Any, Final

from autotune.device import Device, architecture
from autotune.executor.child import take_standard_output
from autotune.executor.compiler import compile_candidate, use_target
from autotune.executor.messages import to_plain
from autotune.implementation import Implementation
from autotune.registry import load_kernel
from autotune.space import Config
from autotune.trial import Candidate
from tests.contract.suite import IMPLEMENTATIONS, data_of, device_of

SAMPLES: Final = 2  # configs of the space beside the default


def configs_of(implementation: Implementation[Any], shape: Any, device: Device) -> list[tuple[str, Config]]:
    """Return the default, and a random few of the valid configs."""
    valid = list(implementation.space.configs(shape, device))
    drawn = random.Random(device.arch).sample(valid, SAMPLES)
    return [("default", implementation.space.default(shape, device)), *((f"sample {each}", each) for each in drawn)]


def compiled_of(implementation: Implementation[Any], device: Device) -> dict[str, Any]:
    """Compile what the operation's data names and it supports, every output; the first shape alone with samples."""
    kernel = load_kernel(implementation.operation, implementation.name)
    shapes = [
        each for each in data_of(implementation.operation).compiled if implementation.supports(each, device) is None
    ]
    found: dict[str, Any] = {}
    for number, shape in enumerate(shapes):
        for name, config in configs_of(implementation, shape, device)[: None if number == 0 else 1]:
            candidate = Candidate(implementation.name, config)
            found[f"{name} of {shape}"] = to_plain(
                compile_candidate(kernel, candidate, shape, device, every_output=True)
            )
    return found


def compiled_for(device: Device) -> list[Implementation[Any]]:
    """Return the implementations that compile ahead and compute something on a device."""
    return [
        each
        for each in IMPLEMENTATIONS
        if each.compiles_ahead
        and any(each.supports(shape, device) is None for shape in data_of(each.operation).compiled)
    ]


def main() -> None:
    messages = take_standard_output()
    device = device_of(sys.argv[1])
    use_target(architecture(device.arch))
    found = {each.title: compiled_of(each, device) for each in compiled_for(device)}
    messages.write(json.dumps(found).encode())


if __name__ == "__main__":
    main()
