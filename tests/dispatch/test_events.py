"""Picks, misses, refusals and compiles: each is logged and counted once, and after the seal some are errors."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Final

import pytest

from autotune.dispatch import events, get_kernel, pick_for_device, picking, reload, seal, stats, unseal
from autotune.dispatch import kernel as kernel_module
from autotune.errors import SealedError, UsageError
from autotune.shape import Shape
from autotune.space import Config
from autotune.tuning_command import tuning_command
from tests import sample
from tests.dispatch.tables import H200, SLOWER, Tables, default_of

MISSED: Final = sample.shape(batch=1)


@pytest.fixture(autouse=True)
def counted_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(events, "_counts", events._Counts())
    yield
    unseal()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="autotune")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in log.records if record.name == "autotune"]


def test_a_pick_is_logged_once_until_another_candidate_is_served(tables: Tables, log: pytest.LogCaptureFixture) -> None:
    tables.ship(sample.trial())
    exact = f"flash_attention: {sample.shape()} on NVIDIA H200: triton {sample.FAST}, exact: tuned for this shape on"
    for _ in range(2):
        get_kernel(sample.shape(), device=H200)
        pick_for_device(sample.shape(), 0, "flash_attention")
        get_kernel(sample.shape(), device=H200, among="fastest")
        reload()
    assert lines(log) == [("INFO", f"{exact} NVIDIA H200; expected about 1 % behind the best, 1 measurement")]
    assert stats().picks == {"exact": 1}
    tables.ship(sample.trial(chosen=SLOWER))
    get_kernel(sample.shape(), device=H200)
    assert [level for level, _ in lines(log)] == ["INFO", "INFO"]
    assert stats().picks == {"exact": 2}


def test_a_miss_is_told_the_command_that_tunes_it(tables: Tables, log: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        get_kernel(MISSED)
        get_kernel(sample.shape(batch=2))
        reload()
    found = lines(log)
    assert [level for level, _ in found] == ["INFO", "INFO"]  # an untuned shape is nothing wrong
    command = tuning_command("flash_attention", MISSED)
    assert found[0][1].endswith(f" ships; nothing recorded says how near the best; `{command}` tunes it")
    counted = stats()
    assert counted.misses == (("flash_attention", MISSED), ("flash_attention", sample.shape(batch=2)))
    assert counted.picks == {"default": 2}


def test_a_picked_kernel_notes_nothing(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.ship(sample.trial())
    serve(monkeypatch)
    kernel = get_kernel(sample.shape())
    assert kernel() == sample.FAST
    for name in ("note_pick", "note_refusal", "note_compile", "begin_compile"):
        for module in (events, kernel_module, picking):
            monkeypatch.setattr(module, name, None, raising=False)
    assert get_kernel(sample.shape()) is kernel
    assert kernel() == sample.FAST


def test_threads_that_pick_together_count_once(tables: Tables, log: pytest.LogCaptureFixture) -> None:
    tables.ship(sample.trial())
    for _ in range(10):
        reload()
        with ThreadPoolExecutor(8) as pool:
            done = [pool.submit(get_kernel, shape, device=H200) for shape in [sample.shape(), MISSED] * 8]
            assert len({future.result().shape for future in done}) == 2
    assert stats().picks == {"exact": 1, "default": 1}
    assert len(lines(log)) == 2


def test_a_process_that_picks_without_end_remembers_a_bounded_number(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "REMEMBERED", 3)
    for batch in range(1, 9):
        get_kernel(sample.shape(batch=batch))
    assert len(events._counts.noted) <= 3
    assert len(events._counts.picked) == 3
    assert len(stats().misses) == 3
    assert stats().picks == {"default": 8}


class RefusalError(Exception):
    """One of Triton's, as far as dispatch can see."""


RefusalError.__module__ = "triton.runtime.errors"


def serve(monkeypatch: pytest.MonkeyPatch, refused: Config | None = None) -> None:
    """Serve kernels that return their config."""

    class Kernel:
        def bind(self, config: Config, shape: Shape) -> Callable[..., Config]:
            def call(*tensors: object, **options: object) -> Config:
                if config == refused:
                    raise RefusalError
                return config

            return call

    monkeypatch.setattr(kernel_module, "load_kernel", lambda operation, implementation: Kernel())


def test_a_refusal_is_logged_as_a_warning(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    tables.ship(sample.trial())
    serve(monkeypatch, refused=sample.FAST)
    kernel = get_kernel(sample.shape())
    with pytest.warns(RuntimeWarning, match="refuses"):
        kernel()
    kernel()
    default = default_of(sample.shape())
    text = f"flash_attention: triton {sample.FAST} is refused (RefusalError); using triton {default}"
    assert [line for line in lines(log) if line[0] == "WARNING"] == [("WARNING", text)]
    assert stats().refusals == 1


def test_a_kernel_that_a_library_compiles_is_timed_in_its_first_call(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    serve(monkeypatch)
    kernel = get_kernel(sample.shape(), among=("flex",))
    assert stats().compiles == 0
    assert kernel() == kernel() == kernel.config
    assert (stats().compiles, stats().compile_seconds > 0.0) == (1, True)
    assert lines(log)[-1][1].startswith("flash_attention/flex compiled in ")
    other = get_kernel(MISSED, among=("flex",))
    seal()
    for _ in range(2):
        with pytest.raises(SealedError, match="flash_attention/flex would compile after seal"):
            other()
    assert kernel() == kernel.config
    unseal()
    assert other() == other.config


def test_after_the_seal_a_new_miss_is_an_error_and_an_old_one_is_served(tables: Tables) -> None:
    tables.ship(sample.trial())
    old = get_kernel(MISSED)
    seal()
    reload()
    assert get_kernel(MISSED).config == old.config
    assert get_kernel(sample.shape()).provenance.rung == "exact"  # a pick is no miss
    missed = sample.shape(batch=2)
    for _ in range(2):  # it does not pass the second time
        with pytest.raises(SealedError) as caught:
            get_kernel(missed)
        assert str(caught.value).startswith(
            f"flash_attention: {missed} on NVIDIA H200 is missed after seal(): no tuned"
        )
    assert (stats().late_misses, stats().misses) == (0, (("flash_attention", MISSED),))
    unseal()
    assert get_kernel(missed).provenance.rung == "default"


def test_after_the_seal_what_was_picked_is_served_though_its_row_is_gone(tables: Tables) -> None:
    tables.tune(sample.trial())
    assert get_kernel(sample.shape()).provenance.rung == "exact"
    seal()
    shutil.rmtree(tables.home)
    reload()
    assert get_kernel(sample.shape()).provenance.rung == "default"
    assert stats().late_misses == 0


def test_the_seal_remembers_what_was_picked_though_events_are_forgotten(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "REMEMBERED", 3)
    tables.ship(sample.trial())
    first = [sample.shape(batch=batch) for batch in (1, 2, 3)]
    for shape in first:
        get_kernel(shape)
    seal()
    get_kernel(sample.shape())  # no miss, for which no room is left; events are forgotten here
    with events.ahead():
        get_kernel(sample.shape(batch=4))
    for shape in [*first, sample.shape(batch=4)]:
        reload()
        assert get_kernel(shape).provenance.rung == "default"
    with pytest.raises(SealedError):
        get_kernel(sample.shape(batch=5))


def test_a_device_that_is_named_is_asked_about_and_not_served(tables: Tables, log: pytest.LogCaptureFixture) -> None:
    for device in ("A100", H200):
        get_kernel(MISSED, device=device)
    seal()
    for device in ("A100", H200):
        get_kernel(sample.shape(batch=2), device=device)
    assert (stats().misses, stats().late_misses, stats().picks) == ((), 0, {"default": 4})
    assert [line for line in lines(log) if "tunes it" in line[1]] == []
    unseal()
    get_kernel(MISSED)
    assert stats().misses == (("flash_attention", MISSED),)


def test_a_seal_that_counts_lets_pass_and_warns(tables: Tables, log: pytest.LogCaptureFixture) -> None:
    get_kernel(MISSED)
    seal(late="count")
    get_kernel(sample.shape(batch=2))
    events.begin_compile("forward")
    events.note_compile("forward", 2.0)
    events.note_compile("forward", 1.0, is_ahead=True)
    assert [level for level, _ in lines(log)] == ["INFO", "WARNING", "WARNING", "INFO"]
    assert lines(log)[2][1] == "forward compiled in 2.00 s after seal()"
    found = stats()
    assert (found.late_misses, len(found.misses)) == (1, 2)
    assert (found.late_compiles, found.compiles, found.compile_seconds) == (1, 2, 3.0)


def test_another_word_for_late_is_refused() -> None:
    with pytest.raises(UsageError, match="late='raise' is not allowed; expected 'error' or 'count'"):
        seal(late="raise")  # type: ignore[arg-type]


def test_triton_says_what_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton.knobs")
    from autotune.kernels import compiles

    seen: list[Any] = []
    monkeypatch.setattr(compiles, "_packages", set())
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", lambda **given: seen.append("before"))
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda **given: seen.append("after"))

    def compile_kernel(module: str, *, is_ahead: bool = False) -> list[Any]:
        given = {"fn": SimpleNamespace(module=module, name="forward"), "is_manual_warmup": is_ahead, "key": "key"}
        knobs.runtime.jit_cache_hook(**given)
        knobs.runtime.jit_post_compile_hook(**given)
        found, seen[:] = list(seen), []
        return found

    def end(name: str, seconds: float, is_ahead: bool) -> None:
        assert 0.0 <= seconds < 60.0
        seen.append((name, is_ahead))

    for package in ("ours.attention", "theirs"):
        compiles.watch(package, lambda name: seen.append(f"begin {name}"), end)
    assert compile_kernel("ours.attention") == ["before", "begin forward", ("forward", False), "after"]
    assert compile_kernel("ours.attention.forward", is_ahead=True) == ["before", ("forward", True), "after"]
    assert compile_kernel("theirs.x") == ["before", "begin forward", ("forward", False), "after"]
    assert compile_kernel("ours.attention_of_others") == ["before", "after"]


@pytest.mark.parametrize("calls_ours", [False, True])
def test_the_seal_finds_hooks_that_were_set_after_ours(monkeypatch: pytest.MonkeyPatch, calls_ours: bool) -> None:
    runtime = pytest.importorskip("triton.knobs").runtime
    from autotune.kernels import compiles

    monkeypatch.setattr(compiles, "_packages", set())
    monkeypatch.setattr(runtime, "jit_cache_hook", None)
    monkeypatch.setattr(runtime, "jit_post_compile_hook", None)
    events.watch_compiles("ours")
    seen: list[str] = []

    def theirs(name: str) -> Callable[..., Any]:
        before = getattr(runtime, name)

        def hook(**given: Any) -> Any:
            seen.append(name)
            return before(**given) if calls_ours else None

        return hook

    names = ("jit_cache_hook", "jit_post_compile_hook")
    for name in names:
        setattr(runtime, name, theirs(name))
    seal(late="count")
    for _ in range(2):
        seal(late="count")  # once is enough
    given = {"fn": SimpleNamespace(module="ours", name="forward"), "is_manual_warmup": False}
    for name in names:
        getattr(runtime, name)(**given)
    assert (seen, stats().compiles, stats().late_compiles) == (list(names), 1, 1)
    seal()
    with pytest.raises(SealedError, match="forward would compile after seal"):
        runtime.jit_cache_hook(**given)


QUIET: Final = """
import contextlib, os
from autotune.decorated import first_call
from autotune.dispatch import events, generation, kernel, picks
from autotune.trial import Candidate
from autotune.space import Config

ours = Candidate("triton", Config())
events.note_refusal("flash_attention", ours, ours, ValueError())  # without a handler of the user's
with contextlib.ExitStack() as held:
    for lock in (events._lock, kernel._lock, generation._lock, picks._lock, first_call._searching):
        held.enter_context(lock)
    child = os.fork()
    if child == 0:
        picks.reload()
        with kernel._lock, first_call._searching:
            os._exit(events.stats().refusals)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_library_prints_nothing_and_a_fork_does_not_hang() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, timeout=60, env=os.environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
