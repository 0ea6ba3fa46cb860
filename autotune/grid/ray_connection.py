"""Connects to a Ray cluster, or starts one on this host where none is named and none is here.

Ray itself is imported in functions alone: everything else works without it.
"""

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from autotune import platforms
from autotune.errors import MissingDependencyError, UsageError, one_line
from autotune.redaction import redacted

INSTALL: Final = 'pip install "attention-autotune[ray]"'
LOOPBACK: Final = "127.0.0.1"
CONNECT_SECONDS: Final = 10.0
_HOST_AND_PORT: Final = re.compile(r"(?:ray://)?([^/@\s]+):(\d{1,5})")
SWITCH: Final = "ENABLE_RAY_CLUSTER"  # of Ray's: listen to other hosts


def import_ray() -> Any:
    """Return the module; MissingDependencyError says how to install it."""
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise MissingDependencyError(f"Ray is not installed; `{INSTALL}`") from error
    return ray


@contextmanager
def connected(ray: Any, address: str | None, labels: Sequence[str], *, replay: bool) -> Iterator[bool]:
    """Connect to a cluster, or start one here, and leave it again; one that the caller is connected to stays.

    True is for one that was started here, which carries those of the labels that this host's GPU has.
    """
    if ray.is_initialized():
        yield False
        return
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    named, is_own = address or os.environ.get("RAY_ADDRESS"), False
    name = "address" if address else "RAY_ADDRESS"
    if named:
        _require_listening(named, name)
    try:
        ray.init(address=address or "auto", log_to_driver=False)
    except ValueError as error:  # of an address that Ray cannot read
        if not named:
            raise
        raise UsageError(f"{name}={redacted(named)!r} is not allowed; expected auto, or HOST:PORT") from error
    except ConnectionError as error:
        if named:
            raise UsageError(f"{name}={named!r}: no Ray cluster answers there; `ray status` says what does") from error
        is_own = True
        with _listening_here_alone(ray):
            ray.init(
                address="local",
                log_to_driver=False,
                include_dashboard=False,
                resources=dict.fromkeys(labels if replay else _labels_here(labels), 1),
                _node_ip_address=LOOPBACK,
            )
    if is_main:
        signal.signal(signal.SIGTERM, handler)  # which ray.init replaces
    try:
        yield is_own
    finally:
        ray.shutdown()


def _require_listening(address: str, name: str) -> None:
    """Refuse an address of a host and a port where nothing listens: Ray tries it for minutes, and says nothing."""
    if (found := _HOST_AND_PORT.fullmatch(address)) is None:  # "auto", say
        return
    host, port = found[1].strip("[]"), int(found[2])
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        why = "it does not answer" if isinstance(error, TimeoutError) else one_line(error)
        raise UsageError(
            f"{name}={redacted(address)!r}: no Ray cluster answers there within {CONNECT_SECONDS:.0f} s ({why}); "
            "`ray status` on its head says what does"
        ) from error


def _labels_here(labels: Sequence[str]) -> list[str]:
    if not labels or not platforms.has_gpu():
        return []
    here = platforms.current_device()
    return [label for label in labels if platforms.is_named(here, label)]


@contextmanager
def _listening_here_alone(ray: Any) -> Iterator[None]:
    """Let a cluster that is started now listen on the loopback address alone: whoever reaches it may run code.

    Ray has a switch for that, which is on where firewalls ask; while it is off, Ray takes a loopback address that it is
    given for the network's. A Ray without the switch listens as it does.
    """
    constants = getattr(getattr(ray, "_private", None), "ray_constants", None)
    before = getattr(constants, SWITCH, None)
    if before is None:
        yield
        return
    setattr(constants, SWITCH, False)
    try:
        yield
    finally:
        setattr(constants, SWITCH, before)
