"""What is served: every rung of the ladder, whose table wins, and what a lookup must never do."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from autotune import dispatch
from autotune.device import NVIDIA_H200, Device
from autotune.dispatch import TunedKernel, get_kernel, neighbour_configs, refusals, reload
from autotune.errors import (
    InputMismatchError,
    InvalidShapeError,
    MissingDependencyError,
    NoTunedKernelError,
    UnknownNameError,
    UsageError,
)
from autotune.search_spaces.flash_attention import OPERATION
from autotune.shape import AttentionShape, PagedShape, Shape
from autotune.space import Config
from autotune.table import Store, read_misses, write_shipped
from autotune.trial import Trial
from tests.report import sample

H200: Final = "NVIDIA H200"
CAPPED: Final = replace(NVIDIA_H200, power_cap_watts=500)
# Valid wherever FAST is, and told apart from it and from the default.
SLOWER: Final = sample.config(BLOCK_K=64)
THIRD: Final = sample.config(BLOCK_K=32)
PAGED: Final = PagedShape(batch=4, heads=8, max_context=256, head_dim=64)
NOBODY: Final = 65534


class Tables:
    """The user's table and the shipped one, both empty at first."""

    def __init__(self, folder: Path) -> None:
        self.home, self.results = folder / "home", folder / "results"

    def tune(self, *trials: Trial) -> None:
        """Add rows to the user's table, and read it again."""
        for trial in trials:
            Store(self.home).append([trial])
        reload()

    def ship(self, *trials: Trial) -> None:
        """Write the shipped table of the H200, and read it again."""
        write_shipped(Path("nvidia_h200/flash_attention.parquet"), trials, results=self.results)
        reload()


@contextmanager
def served_from(tables: Tables) -> Iterator[Tables]:
    """Serve from these tables alone, by the toolchain of the sample's rows."""
    with pytest.MonkeyPatch.context() as patch:
        sample.serve_from(patch, tables.home, tables.results)
        patch.setattr(dispatch, "_installed", lambda package: sample.TOOLCHAIN.triton)
        patch.setattr(dispatch, "current_device", lambda: NVIDIA_H200)
        reload()
        yield tables
    reload()


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    with served_from(Tables(tmp_path)) as tables:
        yield tables


def default_of(shape: AttentionShape, device: Device = NVIDIA_H200) -> Config:
    return OPERATION.space.default(shape, device)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder, with the moments and the bytes of the files."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *sorted(folder.rglob("*"))]
        if path.exists()
    }


def in_fresh_process(code: str, home: Path, **environment: str) -> str:
    """What a new interpreter prints that stands in another folder and serves from this home."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AUTOTUNE"))}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tempfile.gettempdir(),
        env={**inherited, "AUTOTUNE_HOME": str(home), **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


# The ladder


def test_the_row_of_the_very_shape_is_exact(tables: Tables) -> None:
    row = sample.trial(sample.shape(1024))
    tables.ship(row, sample.trial(sample.shape(2048), SLOWER))
    kernel = get_kernel(sample.shape(1024), device=H200)
    assert kernel.config == sample.FAST
    why = kernel.provenance
    assert (why.rung, why.row, why.origin, why.distance, why.notes) == ("exact", row, "shipped", 0.0, ())
    assert str(why) == why.reason == "tuned for this shape on NVIDIA H200"
    assert (kernel.operation, kernel.shape) == ("flash_attention", sample.shape(1024))
    assert "exact" in repr(kernel)


def test_the_nearest_of_several_shapes_is_borrowed(tables: Tables) -> None:
    row = sample.trial(sample.shape(2048), SLOWER)
    tables.ship(sample.trial(sample.shape(1024)), row, sample.trial(sample.shape(512), THIRD))
    kernel = get_kernel(sample.shape(1500), device=H200)
    why = kernel.provenance
    assert (kernel.config, why.rung, why.row) == (SLOWER, "nearest", row)
    assert why.distance == pytest.approx(0.7123, abs=1e-4)  # hypot(log2(10 / 8), 2 x log2(2048 / 1500))
    assert why.reason == f"tuned for the nearest shape ({sample.shape(2048)}; 0.71 away) on NVIDIA H200"


@pytest.mark.parametrize(("batch", "rung"), [(8, "nearest"), (32, "nearest"), (7, "default"), (33, "default")])
def test_a_shape_further_than_a_factor_of_two_is_not_borrowed(tables: Tables, batch: int, rung: str) -> None:
    tables.ship(sample.trial(sample.shape(batch=16)))
    why = get_kernel(sample.shape(batch=batch), device=H200).provenance
    assert why.rung == rung
    if rung == "default":
        assert why.reason == (
            "no tuned shape of flash_attention on NVIDIA H200 is within a distance of 1 (a factor of two in one size): "
            "the space's default"
        )


def test_a_config_that_is_invalid_here_is_passed_over(tables: Tables) -> None:
    asked = sample.shape(seq_q=64, seq_kv=1024)
    nearer = sample.trial(sample.shape(seq_q=96, seq_kv=1024))  # its BLOCK_Q is longer than 64
    farther = sample.trial(sample.shape(seq_q=40, seq_kv=1024), sample.config(BLOCK_Q=64, num_warps=4))
    tables.ship(nearer, farther)
    assert get_kernel(asked, device=H200).provenance.row == farther
    tables.ship(nearer)
    kernel = get_kernel(asked, device=H200)
    assert (kernel.config, kernel.provenance.rung, kernel.provenance.row) == (default_of(asked), "default", None)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16"},
        {"head_dim": 120},
        {"head_dim_v": 64},
        {"causal": False},
        {"window": 512},
        {"softcap": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_families_are_never_mixed(tables: Tables, change: dict[str, Any]) -> None:
    tables.ship(sample.trial(sample.shape(1024)))
    asked = sample.shape(1024, **change)
    kernel = get_kernel(asked, device=H200)
    assert (kernel.provenance.rung, kernel.config) == ("default", default_of(asked))


def test_heads_may_differ_as_sizes_do(tables: Tables) -> None:
    tables.ship(sample.trial(sample.shape(heads=16)))
    assert get_kernel(sample.shape(heads=16, kv_heads=8), device=H200).provenance.rung == "default"  # hypot(1, 1)
    assert get_kernel(sample.shape(heads=8), device=H200).provenance.rung == "nearest"


def test_another_power_cap_is_the_same_model(tables: Tables) -> None:
    row = sample.trial(device=CAPPED)
    tables.ship(row)
    why = get_kernel(sample.shape()).provenance
    assert (why.rung, why.row) == ("same model", row)
    assert why.reason == "tuned for this shape on NVIDIA H200 at 500 W, not the 700 W here"


def test_a_near_shape_at_this_cap_comes_before_the_very_shape_at_another(tables: Tables) -> None:
    near = sample.trial(sample.shape(batch=17), SLOWER)
    tables.ship(sample.trial(device=CAPPED), near)
    assert get_kernel(sample.shape()).provenance.row == near


def test_of_other_caps_the_nearest_comes_first(tables: Tables) -> None:
    caps = (300, 600, 400)
    tables.ship(*[sample.trial(device=replace(NVIDIA_H200, power_cap_watts=cap)) for cap in caps])
    row = get_kernel(sample.shape()).provenance.row
    assert row is not None
    assert row.device.power_cap_watts == 600


def test_a_name_ignores_the_cap_and_takes_the_highest(tables: Tables) -> None:
    tables.ship(sample.trial(device=CAPPED), sample.trial(chosen=SLOWER))
    assert get_kernel(sample.shape(), device=H200).config == SLOWER
    tables.ship(sample.trial(device=CAPPED))
    kernel = get_kernel(sample.shape(), device=H200)
    assert (kernel.config, kernel.provenance.rung) == (sample.FAST, "exact")


def test_another_model_of_the_same_architecture_is_not_trusted(tables: Tables) -> None:
    tables.tune(sample.trial(device=replace(NVIDIA_H200, name="NVIDIA H100", memory_mib=81559)))
    why = get_kernel(sample.shape()).provenance
    assert (why.rung, why.reason) == (
        "default",
        "no tuned shape of flash_attention on NVIDIA H200: the space's default",
    )


def test_an_unknown_name_gets_the_default(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.ship(sample.trial())
    for current in (lambda: NVIDIA_H200, _no_gpu):
        reload()
        monkeypatch.setattr(dispatch, "current_device", current)
        kernel = get_kernel(sample.shape(), device="Voodoo 2")
        assert kernel.provenance.rung == "default"
        assert "Voodoo 2" in kernel.provenance.reason


@pytest.mark.parametrize(
    ("name", "hint"),
    [("H200", "; did you mean 'NVIDIA H200'?"), ("nvidia h200", "; did you mean 'NVIDIA H200'?"), ("foo", "")],
)
def test_the_reason_of_an_unknown_name_says_which_are_like_it(tables: Tables, name: str, hint: str) -> None:
    why = get_kernel(sample.shape(), device=name).provenance
    assert (why.rung, why.reason) == ("default", f"no table knows the device {name}: the space's default{hint}")


def test_a_device_that_another_operation_was_tuned_on_is_known(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "current_device", _no_gpu)
    tables.tune(sample.trial(device=replace(NVIDIA_H200, name="NVIDIA B200")))
    for name in ("NVIDIA B200", H200):
        why = get_kernel(PAGED, device=name).provenance
        assert why.reason == f"no tuned shape of paged_decode on {name}: the space's default"
    why = get_kernel(PAGED, device="b200").provenance
    assert why.reason == "no table knows the device b200: the space's default; did you mean 'NVIDIA B200'?"


@pytest.mark.parametrize("device", ["", "  ", 3, ["NVIDIA H200"]])
def test_a_device_that_is_no_name_is_refused(tables: Tables, device: Any) -> None:
    with pytest.raises(UsageError) as refused:
        get_kernel(sample.shape(), device=device)
    assert str(refused.value) == (
        f"device={device!r} is not allowed; expected a name such as 'NVIDIA H200', or None for the GPU here"
    )


@pytest.mark.parametrize(
    ("shape", "operation", "words"),
    [
        ({"batch": 1}, None, "is of type dict; expected AttentionShape or PagedShape"),
        (None, "paged_decode", "is of type NoneType; expected AttentionShape or PagedShape"),
        (PAGED, "flash_attention", "is of type PagedShape; operation='flash_attention' takes AttentionShape"),
        (sample.shape(), "paged_decode", "is of type AttentionShape; operation='paged_decode' takes PagedShape"),
    ],
    ids=["dict", "none", "paged", "dense"],
)
def test_what_is_no_shape_of_the_operation_is_refused(
    tables: Tables, shape: Any, operation: str | None, words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        get_kernel(shape, device=H200, operation=operation)
    assert str(refused.value) == f"shape={shape!r} {words}"


def _no_gpu() -> Device:
    raise MissingDependencyError("no GPU is visible")


def test_without_a_name_and_a_gpu_is_an_error(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "current_device", _no_gpu)
    with pytest.raises(MissingDependencyError, match="no GPU"):
        get_kernel(sample.shape())


def test_accepted_differences_are_said(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_installed", lambda package: "3.9.1")
    tables.ship(sample.trial(source_hash="ab" * 32))
    why = get_kernel(sample.shape(), device=H200).provenance
    assert why.rung == "exact"
    assert why.notes == (
        "the kernel's source has changed since it was tuned",
        "tuned with triton 3.6.0, here is 3.9.1",
    )


def test_a_shape_that_no_operation_supports_is_refused(tables: Tables) -> None:
    with pytest.raises(InvalidShapeError, match="varlen=True"):
        get_kernel(sample.shape(varlen=True), device=H200)
    with pytest.raises(UnknownNameError, match="no operation takes a Shape"):
        get_kernel(Shape(), device=H200)


# Whose table, and when it is read


def test_the_users_row_beats_the_shipped_one_of_the_same_shape_only(tables: Tables) -> None:
    tables.ship(sample.trial(sample.shape(1024)), sample.trial(sample.shape(4096)))
    tables.tune(sample.trial(sample.shape(1024), SLOWER))
    users, shipped = (get_kernel(sample.shape(seq), device=H200) for seq in (1024, 4096))
    assert (users.config, users.provenance.origin) == (SLOWER, "user")
    assert (shipped.config, shipped.provenance.origin) == (sample.FAST, "shipped")


def test_only_reload_sees_a_changed_table(tables: Tables) -> None:
    tables.ship(sample.trial())
    first = get_kernel(sample.shape(), device=H200)
    Store(tables.home).append([sample.trial(chosen=SLOWER)])
    assert get_kernel(sample.shape(), device=H200) is first
    assert get_kernel(sample.shape(batch=15), device=H200).config == sample.FAST
    reload()
    assert get_kernel(sample.shape(), device=H200).config == SLOWER


def test_a_damaged_users_table_is_warned_of_once_and_the_shipped_one_serves(tables: Tables) -> None:
    tables.ship(sample.trial())
    part = tables.home / "nvidia_h200" / "flash_attention" / f"{'0' * 64}.parquet"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"PAR1")
    with pytest.warns(RuntimeWarning) as caught:
        assert get_kernel(sample.shape(), device=H200).provenance.origin == "shipped"
    assert len(caught) == 1
    assert str(part) in str(caught[0].message)
    reload()
    with warnings.catch_warnings(action="error"):
        assert get_kernel(sample.shape(), device=H200).provenance.origin == "shipped"


def test_a_home_that_does_not_exist_is_not_made(tables: Tables) -> None:
    tables.ship(sample.trial())
    assert get_kernel(sample.shape(), device=H200).provenance.rung == "exact"
    assert not tables.home.exists()


def test_a_lookup_writes_nothing(tables: Tables) -> None:
    tables.tune(sample.trial())
    before = snapshot(tables.home)
    for batch in (16, 10, 1):
        get_kernel(sample.shape(batch=batch), device=H200)
    with pytest.raises(NoTunedKernelError):
        get_kernel(sample.shape(batch=1), device=H200, on_miss="error")
    assert snapshot(tables.home) == before


@pytest.fixture
def unprivileged() -> Iterator[Tables]:
    """Tables in a folder that anyone may enter, read by one for whom permissions count, even in root's tests."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-test-"))
    folder.chmod(0o755)
    is_root = os.geteuid() == 0
    try:
        with served_from(Tables(folder)) as tables:
            yield tables
    finally:
        if is_root:
            os.seteuid(0)
        tables.home.chmod(0o755)
        shutil.rmtree(folder)


def step_down() -> None:
    if os.geteuid() == 0:
        os.seteuid(NOBODY)


def test_a_read_only_home_serves(unprivileged: Tables) -> None:
    unprivileged.tune(sample.trial(chosen=SLOWER))
    unprivileged.home.chmod(0o555)
    step_down()
    assert get_kernel(sample.shape(), device=H200).config == SLOWER
    missed = get_kernel(sample.shape(batch=1), device=H200, on_miss="record")  # cannot be noted, and is served
    assert missed.provenance.rung == "default"


def test_a_home_that_may_not_be_read_is_warned_of(unprivileged: Tables) -> None:
    unprivileged.tune(sample.trial(chosen=SLOWER))
    unprivileged.ship(sample.trial())
    unprivileged.home.chmod(0o000)
    step_down()
    with pytest.warns(RuntimeWarning, match=str(unprivileged.home)):
        assert get_kernel(sample.shape(), device=H200).provenance.origin == "shipped"


# Misses


def test_on_miss_error_raises_only_for_a_miss(tables: Tables) -> None:
    tables.ship(sample.trial())
    assert get_kernel(sample.shape(), device=H200, on_miss="error").provenance.rung == "exact"
    assert get_kernel(sample.shape(batch=15), device=H200, on_miss="error").provenance.rung == "nearest"
    with pytest.raises(NoTunedKernelError, match=r"flash_attention: no tuned shape .*; shape: batch 1, 16 heads"):
        get_kernel(sample.shape(batch=1), device=H200, on_miss="error")


def test_on_miss_record_notes_each_missed_shape_once(tables: Tables) -> None:
    tables.ship(sample.trial())
    missed = [sample.shape(batch=1), sample.shape(window=256)]
    for shape in (sample.shape(), *missed, *missed):
        get_kernel(shape, device=H200, on_miss="record")
    assert read_misses() == [(OPERATION, shape) for shape in missed]
    assert len((tables.home / "misses.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("batch", [16, 1], ids=["hit", "miss"])
def test_another_on_miss_is_refused(tables: Tables, batch: int) -> None:
    tables.ship(sample.trial())
    with pytest.raises(UsageError, match="on_miss='ignore' is not allowed; expected 'default', 'error', 'record'"):
        get_kernel(sample.shape(batch=batch), device=H200, on_miss="ignore")  # type: ignore[arg-type]


# Same answer everywhere

PRINT_PICKS: Final = """
from autotune import AttentionShape, get_kernel
for seq, batch in [(1024, 16), (1500, 10), (1024, 15), (64, 1)]:
    shape = AttentionShape(batch=batch, heads=16, seq_q=seq, head_dim=128, causal=True)
    kernel = get_kernel(shape, device="NVIDIA H200")
    print(kernel.config, kernel.provenance)
"""


def test_every_process_picks_the_same(tables: Tables) -> None:
    configs = (sample.FAST, SLOWER, THIRD, sample.config(num_stages=3))
    shapes = [sample.shape(batch=batch) for batch in (14, 16, 18)] + [sample.shape(2048)]
    for number, (shape, config) in enumerate(zip(shapes, configs, strict=True)):
        tables.tune(sample.trial(shape, config, race_id=f"race-{number}"))
    picks = {in_fresh_process(PRINT_PICKS, tables.home, PYTHONHASHSEED=seed) for seed in ("0", "1", "77")}
    assert len(picks) == 1
    assert picks.pop().count("tuned for") == 3


def test_of_two_shapes_equally_near_the_choice_does_not_hang_on_the_order_of_rows(tables: Tables) -> None:
    rows = [sample.trial(sample.shape(batch=8)), sample.trial(sample.shape(batch=32), SLOWER)]
    picks = set()
    for order in (rows, rows[::-1]):
        numbered = [replace(row, number=number) for number, row in enumerate(order)]
        tables.ship(*numbered)
        picks.add(get_kernel(sample.shape(batch=16), device=H200).config)
    assert len(picks) == 1


LOADED: Final = """
import sys, autotune
shape = autotune.AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128, causal=True)
rung = autotune.get_kernel(shape, device="NVIDIA H200").provenance.rung
print(rung, *({name.partition(".")[0] for name in sys.modules} & {"optuna", "sqlalchemy", "triton", "torch", "rich"}))
"""


def test_a_lookup_loads_no_heavy_library(tables: Tables) -> None:
    tables.tune(sample.trial())
    assert in_fresh_process(LOADED, tables.home).split() == ["exact"]


def test_a_repeated_lookup_is_the_same_object(tables: Tables) -> None:
    assert get_kernel(sample.shape(), device=H200) is get_kernel(sample.shape(), device=H200)


def test_threads_look_up_while_tables_change(tables: Tables) -> None:
    other = sample.trial(sample.shape(4096), THIRD)
    tables.ship(sample.trial(), other)

    def look_up() -> None:
        for count in range(300):
            assert get_kernel(sample.shape(batch=16 - count % 3), device=H200).config in (sample.FAST, SLOWER)
            assert get_kernel(sample.shape(4096), device=H200).config == THIRD
            time.sleep(0.001)  # lets the writer have its turns

    turns = 0
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(look_up) for _ in range(8)]
        while not all(future.done() for future in done):
            chosen = (SLOWER, sample.FAST)[turns % 2]
            tables.ship(sample.trial(chosen=chosen), other)
            assert get_kernel(sample.shape(), device=H200).config == chosen
            turns += 1
        for future in done:
            future.result()
    assert turns >= 3


def test_a_pick_begun_before_a_reload_is_not_served_after_it(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.ship(sample.trial())
    has_read, may_end = threading.Event(), threading.Event()
    climb = dispatch._climb

    def climb_late(*arguments: Any) -> Any:
        has_read.set()
        assert may_end.wait(10)
        return climb(*arguments)

    monkeypatch.setattr(dispatch, "_climb", climb_late)
    late = threading.Thread(target=get_kernel, args=(sample.shape(),), kwargs={"device": H200})
    late.start()
    assert has_read.wait(10)
    monkeypatch.setattr(dispatch, "_climb", climb)
    tables.ship(sample.trial(chosen=SLOWER))
    may_end.set()
    late.join()
    assert get_kernel(sample.shape(), device=H200).config == SLOWER


# Refused configs


class RefusalError(Exception):
    """What Triton raises for a config that it cannot launch, as far as dispatch can see."""


RefusalError.__module__ = "triton.runtime.errors"


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
    monkeypatch.setattr(dispatch, "load_kernel", lambda name: kernel)
    return kernel


def test_a_refused_config_gives_way_to_the_next_stored_and_then_the_default(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.ship(sample.trial(), sample.trial(sample.shape(batch=15), SLOWER))
    default = default_of(sample.shape())
    for refused, served, rung in (((sample.FAST,), SLOWER, "nearest"), ((sample.FAST, SLOWER), default, "default")):
        reload()
        fake, before = refusing(monkeypatch, *refused), refusals()
        kernel = get_kernel(sample.shape(), device=H200)
        with pytest.warns(RuntimeWarning, match=r"refuses .*BLOCK_K.* using .* instead") as caught:
            assert kernel() == served
        assert len(caught) == refusals() - before == len(refused)
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


def test_a_refused_default_raises(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, default_of(sample.shape()))
    kernel, before = get_kernel(sample.shape(), device=H200), refusals()
    for _ in range(2):
        with pytest.raises(RefusalError):
            kernel()
    assert refusals() == before


@pytest.mark.parametrize("error", [RuntimeError("CUDA error"), InputMismatchError("q is small")])
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

    fake, before = Meeting({sample.FAST: RefusalError("no")}), refusals()
    monkeypatch.setattr(dispatch, "load_kernel", lambda name: fake)
    kernel: TunedKernel = get_kernel(sample.shape(), device=H200)
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(kernel) for _ in range(4)]]
    assert found == [SLOWER] * 4
    assert refusals() == before + 1


# Where a search begins


def test_neighbours_are_distinct_configs_of_the_model_nearest_first(tables: Tables) -> None:
    tables.ship(
        sample.trial(sample.shape(4096), THIRD),
        sample.trial(sample.shape(2048), SLOWER),
        sample.trial(sample.shape(1024), SLOWER, device=CAPPED),
        sample.trial(sample.shape(16384), sample.FAST),
        sample.trial(sample.shape(1024, causal=False), sample.config(num_stages=3)),
    )
    assert neighbour_configs(OPERATION, sample.shape(), NVIDIA_H200) == [SLOWER, THIRD, sample.FAST]
    assert neighbour_configs(OPERATION, sample.shape(), NVIDIA_H200, count=2) == [SLOWER, THIRD]
    other = replace(NVIDIA_H200, name="NVIDIA H100")
    assert neighbour_configs(OPERATION, sample.shape(), other) == []
