"""Opens the executor of a search: the GPU here, or a replay of the sweeps recorded on another."""

from dataclasses import asdict
from typing import Final, NamedTuple

from autotune import platforms
from autotune.device import NVIDIA_H200, Device
from autotune.errors import MissingDependencyError, UnknownNameError, UsageError
from autotune.executor import Executor
from autotune.executor.gpu import GpuExecutor
from autotune.executor.gpu_children import GpuChildren, start_children
from autotune.executor.replay import ReplayExecutor
from autotune.executor.settings import Settings as Settings
from autotune.registry import operation_names
from autotune.table import shipped_sweeps
from autotune.trial import Policy, Toolchain, Trial

NO_GPU: Final = "this command measures, and no GPU is visible; run `autotune doctor`"


class ExecutorInfo(NamedTuple):
    """The columns that an executor gives to its rows, known without opening a GPU."""

    name: str
    device: Device
    toolchain: Toolchain
    policy: Policy

    def toolchain_of(self, implementation: str) -> Toolchain:
        return self.toolchain


def open_executor(device: str | None, settings: Settings, children: GpuChildren | None = None) -> Executor:
    """Open the GPU here if it is the one that was named, or none was; else that device's sweeps, by ``open_replay``.

    ``children`` are those that ``start_children`` has started with these settings; they are ended where they are not
    needed.
    """
    executor = _find_gpu(settings, children)
    if executor is not None and (device is None or platforms.is_named(executor.device, device)):
        return executor
    if executor is not None:
        executor.close()
    return open_replay(device, settings.policy)


def open_gpu(settings: Settings, children: GpuChildren | None = None) -> Executor:
    """Open the GPU here, for what only measuring can answer; raise MissingDependencyError if there is none."""
    if (executor := _find_gpu(settings, children)) is None:
        raise MissingDependencyError(NO_GPU)
    return executor


def _find_gpu(settings: Settings, children: GpuChildren | None) -> GpuExecutor | None:
    if children is None and platforms.has_driver():
        children = start_children(settings)  # before ``has_gpu`` imports torch, as they do
    if platforms.has_gpu():
        return GpuExecutor(settings, children)
    if children is not None:
        children.close()
    return None


def open_replay(device: str | None, policy: Policy) -> ReplayExecutor:
    """Open the recorded sweeps of a device by name, the H200's by default; of several power caps, the highest.

    Raises:
        UnknownNameError: the named device is neither here nor recorded.
        MissingDependencyError: none was named, and the H200 is not recorded.
        UsageError: nothing was recorded on it with that policy.
    """
    name = device or NVIDIA_H200.name
    recorded = [t for operation in operation_names() for sweep in shipped_sweeps(operation) for t in sweep.trials()]
    devices = {trial.device for trial in recorded}
    named = [candidate for candidate in devices if platforms.is_named(candidate, name)]
    if not named and device is None:
        raise MissingDependencyError(f"no GPU is visible, and no sweep of an {name} is recorded to replay instead")
    if not named:
        known = ", ".join(sorted({device.name for device in devices})) or "none"
        hint = platforms.did_you_mean(name, devices)
        if platforms.known_device(name) is None:
            raise UnknownNameError(f"device={name!r} is unknown; recorded: {known}{hint}")
        raise UnknownNameError(f"device={name!r} is neither here nor recorded; recorded: {known}{hint}")
    here = max(named, key=lambda candidate: candidate.power_cap_watts or 0)
    return ReplayExecutor(here, _with_policy([trial for trial in recorded if trial.device == here], policy))


def describe_executor(device: str | None, policy: Policy, *, index: int | None = None) -> ExecutorInfo | ReplayExecutor:
    """Describe what ``open_executor`` would open, or raise as it does; opens no GPU, a replay reads tables alone.

    A known device that is neither here nor recorded is described as if it were here.
    """
    if platforms.has_gpu():
        current = platforms.current_device(index)
        if device is None or platforms.is_named(current, device):
            return ExecutorInfo("gpu", current, platforms.toolchain(), policy)
    try:
        return open_replay(device, policy)
    except UnknownNameError:
        if device is None or (known := platforms.known_device(device)) is None:
            raise
        return ExecutorInfo("gpu", known, platforms.toolchain(), policy)


def _with_policy(recorded: list[Trial], policy: Policy) -> list[Trial]:
    """Return the trials of that policy: times of one policy are never given out as those of another."""
    found = [trial for trial in recorded if trial.policy == policy]
    if not found:
        known = "; ".join(sorted({_policy_text(trial.policy) for trial in recorded}))
        raise UsageError(
            f"{_policy_text(policy)} was not recorded on {recorded[0].device.name}; recorded: {known}. "
            "Another policy needs the GPU"
        )
    return found


def _policy_text(policy: Policy) -> str:
    return ", ".join(f"{'policy' if name == 'mode' else name}={value!r}" for name, value in asdict(policy).items())
