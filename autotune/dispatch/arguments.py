"""Checks of the arguments of a pick, for those that no type checker has seen."""

from autotune.device import NVIDIA_H200, Device
from autotune.dispatch.devices import is_torch_device
from autotune.errors import UsageError
from autotune.registry import get_operation, implementation_names, operation_names
from autotune.shape import Shape


def check_arguments(shape: object, device: object, among: object) -> None:
    """Refuse what is no shape, no name or place of a GPU, or does not say among which implementations."""
    if not isinstance(shape, Shape):
        classes = sorted({get_operation(name).shape_class.__name__ for name in operation_names()})
        raise UsageError(f"shape={shape!r} is of type {type(shape).__name__}; expected {' or '.join(classes)}")
    is_name = isinstance(device, str) and device.strip() and not is_torch_device(device)
    if not is_name and not isinstance(device, int | Device):
        raise not_a_name(device)
    if among not in ("ours", "fastest") and not (
        isinstance(among, tuple) and among and all(isinstance(name, str) for name in among)
    ):
        is_name = any(among in implementation_names(name) for name in operation_names())
        example = (among,) if is_name else ("triton",)
        raise UsageError(
            f"among={among!r} is not allowed; expected 'ours', 'fastest' or a tuple of names such as {example}"
        )


def not_a_name(device: object) -> UsageError:
    """Make the error for an argument that names no GPU."""
    return UsageError(
        f"device={device!r} is not the name of a GPU; expected one such as {NVIDIA_H200.name!r}, or None for the "
        "GPU here"
    )
