"""Configs that the Triton here is recorded to refuse, or to spill in a steady loop, are not served; others are."""

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.device import NVIDIA_H200
from autotune.dispatch import default_config, evidence, get_kernel, reload, stats
from autotune.registry import get_implementation
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.table import Compilation
from tests import sample
from tests.dispatch.tables import H200, SLOWER, THIRD, Tables, default_of

NEAR: Final = sample.shape(batch=15)
Install = Callable[[str], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make another version of Triton the installed one, as far as serving can see."""

    def installed(version: str) -> None:
        monkeypatch.setattr(evidence, "installed_version", lambda library: version)
        reload()

    return installed


def both(**found: Any) -> list[Compilation]:
    """The winner of the sample by the Triton that timed it, and by a newer one that finds this in it."""
    return [sample.compilation("3.6.0"), sample.compilation("3.9.0", **found)]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"refusal": "compile_error: PassManager failed"}, "Triton 3.9.0 refuses it: compile_error: PassManager"),
        ({"spill_bytes": 160, "loop_spills": 91}, "Triton 3.9.0 spills registers in its steady loops (91 instructions"),
    ],
    ids=["refused", "spilled"],
)
@pytest.mark.parametrize("here", ["3.9.0", "3.9.1", "3.9.0+git12ab"])
def test_what_is_unfit_yields_to_the_next_stored_row(
    tables: Tables, install: Install, found: dict[str, Any], reason: str, here: str
) -> None:
    tables.ship(sample.trial(), sample.trial(NEAR, SLOWER))
    tables.compiled(*both(**found))
    install(here)
    kernel = get_kernel(sample.shape(), device=H200)
    assert (kernel.config, kernel.provenance.rung) == (SLOWER, "nearest")
    (why,) = kernel.provenance.passed_over
    assert why.startswith(f"{sample.candidate()}, tuned for {sample.shape()}, is not served: {reason}")
    assert sample.FAST not in [each.candidate.config for each in kernel.alternatives]
    assert all(each.provenance.passed_over == (why,) for each in kernel.alternatives)


@pytest.mark.parametrize(
    ("rows", "here"),
    [
        (both(loop_spills=91), "3.6.0"),
        (both(loop_spills=91), "3.6.1"),
        (both(loop_spills=91), "3.8.0"),
        (both(loop_spills=91), ""),
        (both(spill_bytes=160), "3.9.0"),
        (both(spill_bytes=160, loop_spills=3), "3.9.0"),
        (both(loop_spills=None), "3.9.0"),
        (both(loop_spills=91)[1:], "3.9.0"),
        ([sample.compilation("3.6.0", loop_spills=91), sample.compilation("3.9.0", loop_spills=91)], "3.9.0"),
        ([replace(row, source_hash="0" * 64) for row in both(refusal="refused")], "3.9.0"),
        ([replace(row, shape=NEAR) for row in both(refusal="refused")], "3.9.0"),
        ([replace(row, config=SLOWER) for row in both(refusal="refused")], "3.9.0"),
    ],
    ids=[
        *("own Triton", "own series", "a series that is not recorded", "no Triton", "spilled elsewhere"),
        "a few spills",
        *("unknown spills", "unknown before", "spilled before", "another source", "another shape", "another config"),
    ],
)
def test_what_is_not_known_to_be_unfit_is_served(
    tables: Tables, install: Install, rows: list[Compilation], here: str
) -> None:
    tables.ship(sample.trial())
    tables.compiled(*rows)
    install(here)
    kernel = get_kernel(sample.shape(), device=H200)
    assert (kernel.config, kernel.provenance.rung, kernel.provenance.passed_over) == (sample.FAST, "exact", ())


def test_a_row_that_the_newer_triton_timed_itself_is_served(tables: Tables, install: Install) -> None:
    newer = replace(sample.TOOLCHAIN, triton="3.9.0")
    tables.ship(replace(sample.trial(), toolchain=newer))
    tables.compiled(*both(refusal="refused"))
    install("3.9.0")
    assert get_kernel(sample.shape(), device=H200).config == sample.FAST


def test_with_nothing_else_stored_the_default_is_served_and_the_shape_missed(tables: Tables, install: Install) -> None:
    tables.ship(sample.trial())
    tables.compiled(*both(loop_spills=91))
    install("3.9.0")
    kernel = get_kernel(sample.shape())
    assert (kernel.config, kernel.is_untuned) == (default_of(sample.shape()), True)
    assert "all that was tuned for this shape or near it is unfit for the Triton here" in kernel.provenance.reason
    assert ("flash_attention", sample.shape()) in stats().misses  # ``search --from-misses`` tunes it with this Triton


def test_the_portfolio_serves_no_unfit_member(tables: Tables, install: Install) -> None:
    tables.ship(sample.trial())
    tables.cover(sample.assignment(), sample.assignment(sample.shape(2048)), sample.assignment(NEAR, THIRD))
    tables.compiled(*both(loop_spills=91))
    assert default_config(IMPLEMENTATION, sample.shape(), NVIDIA_H200) == sample.FAST
    install("3.9.0")
    # By the row of this shape FAST is unfit here, whichever recorded shape it is assigned to.
    assert get_kernel(sample.shape(), device=H200).config == THIRD
    # The portfolio alone leaves out the assignment that is recorded as unfit, and no other.
    assert default_config(IMPLEMENTATION, sample.shape(), NVIDIA_H200) == THIRD
    assert default_config(IMPLEMENTATION, sample.shape(2048), NVIDIA_H200) == sample.FAST


def test_what_is_unfit_for_this_shape_is_served_for_it_from_no_other_row(tables: Tables, install: Install) -> None:
    tables.ship(sample.trial(), sample.trial(NEAR))  # of the second row nothing is recorded
    tables.cover(sample.assignment(sample.shape(2048)), sample.assignment(sample.shape(8192), SLOWER))
    tables.compiled(*both(loop_spills=91))
    install("3.9.0")
    kernel = get_kernel(sample.shape(), device=H200)
    assert (kernel.config, kernel.provenance.rung) == (SLOWER, "default")
    assert sample.FAST not in [each.candidate.config for each in kernel.alternatives]


def test_the_portfolio_of_another_implementation_comes_before_a_stand_in_default(
    tables: Tables, install: Install
) -> None:
    gluon = get_implementation("flash_attention", "gluon_hopper")
    default = gluon.space.default(sample.shape(), NVIDIA_H200)
    tables.ship(sample.trial())
    tables.cover(
        sample.assignment(chosen=default, is_default=True, implementation="gluon_hopper", source_hash=gluon.source_hash)
    )
    tables.compiled(*both(loop_spills=91))
    assert get_kernel(sample.shape(), device=H200).implementation == "triton"
    install("3.9.0")
    kernel = get_kernel(sample.shape(), device=H200)
    assert (kernel.candidate, kernel.provenance.rung) == (sample.candidate(default, "gluon_hopper"), "default")
    reload()
    elsewhere = get_kernel(sample.shape(8), device=H200)  # nothing is passed over: nothing says that Gluon is faster
    assert elsewhere.implementation == "triton"


def test_the_last_resort_is_served_even_if_it_is_unfit(tables: Tables, install: Install) -> None:
    default = default_of(sample.shape())
    tables.ship(sample.trial(chosen=default))
    tables.compiled(
        *(
            sample.compilation(each.triton_version, chosen=default, loop_spills=each.loop_spills)
            for each in both(loop_spills=91)
        )
    )
    install("3.9.0")
    kernel = get_kernel(sample.shape(), device=H200, among=("triton",))
    assert (kernel.config, kernel.provenance.rung) == (default, "default")


def test_a_pinned_config_is_served(tables: Tables, install: Install) -> None:
    tables.ship(sample.trial())
    tables.compiled(*both(refusal="refused"))
    install("3.9.0")
    pinned = get_kernel(sample.shape(), device=H200, config=dict(sample.FAST), implementation="triton")
    assert (pinned.config, pinned.provenance.rung) == (sample.FAST, "pinned")


def test_a_damaged_file_is_warned_of_and_everything_is_served(tables: Tables, install: Install) -> None:
    tables.ship(sample.trial())
    path = tables.compiled(*both(refusal="refused"))
    path.write_bytes(b"PAR1")
    install("3.9.0")
    with pytest.warns(RuntimeWarning, match=r"compilations/triton\.parquet: damaged"):
        assert get_kernel(sample.shape(), device=H200).config == sample.FAST


def test_no_file_is_opened_where_the_triton_is_the_one_that_timed_the_rows(
    tables: Tables, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.ship(sample.trial())
    tables.cover(sample.assignment())
    path = tables.compiled(*both(refusal="refused"))
    opened: list[str] = []
    real = os.open

    def noting(path: Any, *arguments: Any, **options: Any) -> int:
        opened.append(str(path))
        return real(path, *arguments, **options)

    def noting_file(path: Any, *arguments: Any, **options: Any) -> Any:
        opened.append(str(path))
        return real_open(path, *arguments, **options)

    real_open = io.open
    monkeypatch.setattr(os, "open", noting)
    monkeypatch.setattr("builtins.open", noting_file)
    monkeypatch.setattr(io, "open", noting_file)
    for here, is_opened in (("3.6.0", False), ("3.9.0", True)):
        opened.clear()
        install(here)
        get_kernel(sample.shape(), device=H200)
        assert any(Path(each) == path for each in opened) == is_opened, opened
        assert opened, "the tables are read, and this would see it"
