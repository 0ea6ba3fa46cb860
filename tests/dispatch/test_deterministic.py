"""In torch's deterministic mode a candidate whose runs may differ gives way to the next."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.dispatch import get_kernel, provenance
from autotune.dispatch import kernel as kernel_module
from autotune.errors import UnsupportedCallError
from autotune.registry import get_implementation
from autotune.space import Config
from tests import sample
from tests.dispatch.tables import H200, SLOWER, Tables, defaults_of


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def serve(monkeypatch: pytest.MonkeyPatch, *varying: Config) -> Callable[[], Config]:
    """Return a served kernel whose calls return the config, some of which are not deterministic."""

    class Kernel:
        def bind(self, config: Config, shape: object) -> Callable[[], Config]:
            return lambda: config

    def get(operation: str, name: str) -> Any:
        return replace(get_implementation(operation, name), is_deterministic=lambda config: config not in varying)

    monkeypatch.setattr(kernel_module, "load_kernel", lambda operation, implementation: Kernel())
    monkeypatch.setattr(provenance, "get_implementation", get)
    return get_kernel(sample.shape(), device=H200)


def test_the_next_candidate_is_taken_while_the_mode_lasts(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.ship(sample.trial(), sample.trial(sample.shape(batch=15), SLOWER))
    call = serve(monkeypatch, sample.FAST)
    assert call() == sample.FAST
    torch.use_deterministic_algorithms(True)
    assert call() == SLOWER
    torch.use_deterministic_algorithms(False)
    assert call() == sample.FAST


def test_without_any_the_call_is_refused(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.ship(sample.trial())
    call = serve(monkeypatch, sample.FAST, *defaults_of(sample.shape()))
    torch.use_deterministic_algorithms(True)
    with pytest.raises(UnsupportedCallError, match="flash_attention: no candidate is deterministic, and torch"):
        call()


def test_today_every_candidate_of_ours_is(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.ship(sample.trial())
    call = serve(monkeypatch)
    torch.use_deterministic_algorithms(True)
    assert call() == sample.FAST
