"""A config that the toolchain refuses gives way to the next stored one, and at last to the default."""

import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from autotune.dispatch import TunedKernel, get_kernel, reload, stats
from autotune.dispatch import kernel as kernel_module
from autotune.errors import InputMismatchError, is_toolchain_refusal
from autotune.shape import Shape
from autotune.space import Config
from tests import sample
from tests.dispatch.tables import H200, SLOWER, Tables, default_of, defaults_of


class RefusalError(Exception):
    """Triton's error for a config that it cannot launch, as far as dispatch can see."""


RefusalError.__module__ = "triton.runtime.errors"


class DerivedError(RefusalError):
    """An error of a foreign implementation that is one of Triton's, too."""


class FakeKernel:
    """Binds configs to calls that return the config, or raise for those that are refused."""

    def __init__(self, refused: dict[Config, Exception]) -> None:
        self.refused = refused
        self.bound: list[Config] = []

    def bind(self, config: Config, shape: Shape) -> Callable[..., Config]:
        self.bound.append(config)

        def call(*tensors: object, **options: object) -> Config:
            if config in self.refused:
                raise self.refused[config]
            return config

        return call


def refusing(monkeypatch: pytest.MonkeyPatch, *refused: Config, error: Exception | None = None) -> FakeKernel:
    kernel = FakeKernel(dict.fromkeys(refused, error or RefusalError("out of resource: shared memory")))
    monkeypatch.setattr(kernel_module, "load_kernel", lambda operation, implementation: kernel)
    return kernel


def test_a_refused_config_gives_way_to_the_next_stored_and_then_the_default(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.ship(sample.trial(), sample.trial(sample.shape(batch=15), SLOWER))
    default = default_of(sample.shape())
    for refused, served, rung in (((sample.FAST,), SLOWER, "nearest"), ((sample.FAST, SLOWER), default, "default")):
        reload()
        fake, before = refusing(monkeypatch, *refused), stats().refusals
        kernel = get_kernel(sample.shape(), device=H200)
        with pytest.warns(RuntimeWarning, match=r"refuses .*BLOCK_K.* using .* instead") as caught:
            assert kernel() == served
        assert len(caught) == stats().refusals - before == len(refused)
        assert (kernel.config, kernel.provenance.rung) == (served, rung)
        assert kernel() == served  # silently, and from the call that was bound
        assert fake.bound == [*refused, served]


def test_a_config_that_is_refused_only_by_a_later_call_gives_way_too(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.ship(sample.trial(sample.shape()))
    fake = refusing(monkeypatch)
    kernel: TunedKernel = get_kernel(sample.shape(), device=H200)
    served = kernel()
    fake.refused[served] = RefusalError("out of resource: the binary for other strides")
    with pytest.warns(RuntimeWarning, match="refuses"):
        assert kernel() != served
    assert kernel() == kernel.config


def test_rows_that_share_a_refused_config_are_not_tried_again(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.ship(*[sample.trial(sample.shape(batch=batch)) for batch in (14, 15, 16)])
    fake = refusing(monkeypatch, sample.FAST)
    with pytest.warns(RuntimeWarning, match="refuses") as caught:
        get_kernel(sample.shape(), device=H200)()
    assert len(caught) == 1
    assert fake.bound == [sample.FAST, default_of(sample.shape())]


def test_the_last_default_raises_where_it_is_refused(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    *others, last = defaults_of(sample.shape())
    refusing(monkeypatch, *others, last)
    kernel, before = get_kernel(sample.shape(), device=H200), stats().refusals
    with pytest.warns(RuntimeWarning, match="refuses"), pytest.raises(RefusalError):
        kernel()
    with pytest.raises(RefusalError):
        kernel()
    assert stats().refusals - before == len(others)
    assert kernel.config == last


@pytest.mark.parametrize("error", [DerivedError("no"), RuntimeError("passmanager::run failed")])
def test_the_rule_of_trials_holds_for_calls(tables: Tables, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    tables.ship(sample.trial(), sample.trial(sample.shape(batch=15), SLOWER))
    refusing(monkeypatch, sample.FAST, error=error)
    with pytest.warns(RuntimeWarning, match="refuses"):
        assert get_kernel(sample.shape(), device=H200)() == SLOWER
    assert is_toolchain_refusal(error)  # which ``Harness.classify`` asks


@pytest.mark.parametrize("error", [RuntimeError("CUDA error"), InputMismatchError("q is passmanager")])
def test_other_errors_are_the_callers(tables: Tables, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    tables.ship(sample.trial(), sample.trial(sample.shape(batch=15), SLOWER))
    refusing(monkeypatch, sample.FAST, error=error)
    kernel = get_kernel(sample.shape(), device=H200)
    with pytest.raises(type(error)):
        kernel()
    assert kernel.config == sample.FAST


def test_threads_that_meet_one_refusal_turn_to_the_same_config(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.ship(sample.trial(), sample.trial(sample.shape(batch=15), SLOWER))
    together = threading.Barrier(4)

    class Meeting(FakeKernel):
        def bind(self, config: Config, shape: Shape) -> Callable[..., Config]:
            call = super().bind(config, shape)
            if config != sample.FAST:
                return call

            def meet(*tensors: object) -> Config:
                together.wait(10)
                return call()

            return meet

    fake, before = Meeting({sample.FAST: RefusalError("no")}), stats().refusals
    monkeypatch.setattr(kernel_module, "load_kernel", lambda operation, implementation: fake)
    kernel: TunedKernel = get_kernel(sample.shape(), device=H200)
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(kernel) for _ in range(4)]]
    assert found == [SLOWER] * 4
    assert stats().refusals == before + 1
