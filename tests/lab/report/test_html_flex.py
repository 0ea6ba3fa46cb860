"""The HTML report of FlexAttention: its blocks have other names, and torch, which compiles it, has a version."""

import re
from datetime import UTC, datetime

import pytest

from autotune.device import NVIDIA_H200
from autotune.lab.report.document import html_report
from autotune.lab.report.failures import failures_section
from autotune.lab.report.heat import MARK, choose_layout, heat_maps
from autotune.lab.report.parameters import combined, shares_of
from autotune.lab.report.screening import Screening, group
from autotune.lab.report.winner_table import winners_section
from autotune.search_spaces.flash_attention.flex import IMPLEMENTATION
from autotune.shape import AttentionShape
from autotune.trial import Stage, Status, Trial
from tests import flex_sample

CELL = re.compile(r"<g class=\"([^\"]*)\"><title>([^<]*)</title>.*?<text[^>]*>([^<]*)</text></g>")


@pytest.fixture(scope="module")
def rows() -> list[Trial]:
    return flex_sample.sweep()


@pytest.fixture(scope="module")
def swept(rows: list[Trial]) -> Screening:
    (problem,) = group(rows)
    return problem


def words(markup: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", markup, flags=re.DOTALL)).split())


def render(trials: list[Trial]) -> str:
    return words(html_report(trials, source="a test", made_at=datetime(2026, 11, 28, tzinfo=UTC)))


def test_the_winners_of_all_problems_are_listed_with_their_options() -> None:
    won = flex_sample.winners()
    drawn = winners_section(won, {})
    listed = drawn[: drawn.index("<figure")]
    assert listed.count("<tr>") == 1 + 8
    for winner in won:
        assert f">{winner.shape}<" in listed
        assert f"<code>{winner.candidate}</code>" in listed
    assert listed.count("1.25x") == 8
    assert "flex BLOCK_M=128 BLOCK_N=128 num_warps=4 num_stages=2" in words(listed)


def test_a_page_tells_what_was_gained_and_which_torch_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    flex_sample.install(monkeypatch, "2.13.0")
    text = render(flex_sample.winners())
    assert "1.25x against the default geometric mean; at most 1.25x" in text
    assert "0.50x against the fastest baseline ahead in 0 of 8" in text
    assert "Worth using: 8 of 8 winners" in text
    assert "The table holds winners alone" in text
    assert "8 rows of flash_attention/flex are of another torch than is installed here." in text
    assert "not what is installed here" in text
    flex_sample.install(monkeypatch, "2.11.0+rocm7")
    text = render(flex_sample.winners())
    assert "All rows are of the kernel source that is installed here." in text
    assert "of another torch" not in text


def test_a_sweep_is_told_with_its_winner_its_failures_and_what_matters(rows: list[Trial]) -> None:
    text = render(rows)
    assert "A sweep: every valid config was tried, 128 configs, of which 120 ran" in text
    assert "Screened: 128 configs of 1 problem; 6.2 % failed, most often as out_of_resources (8)." in text
    assert " matter most." in text
    assert "8 out_of_resources out of resource: shared memory, Required: 278528, Hardware limit: 232448" in text


def test_a_heat_map_is_of_its_blocks_for_each_number_of_warps_and_stages(swept: Screening) -> None:
    layout = choose_layout(swept, {"num_warps": 0.9, "num_stages": 0.1})
    assert layout is not None
    names = [parameter.name for parameter in layout if parameter]
    assert names == ["BLOCK_M", "BLOCK_N", "num_warps", "num_stages"]
    cells = [match.groups() for match in CELL.finditer(heat_maps(swept, layout))]
    tried = {tuple(trial.config[name] for name in names) for trial in swept.trials}
    assert len(cells) == len(tried) == 64
    assert sum("is-best" in kind for kind, _, _ in cells) == 1
    assert sum("is-default" in kind for kind, _, _ in cells) == 1
    failed = [name for kind, name, _ in cells if kind.startswith("failed")]
    assert len(failed) == 4
    assert all(name.endswith("BLOCK_N=32: 2 out_of_resources") for name in failed)
    largest = {text for _, name, text in cells if name.startswith("BLOCK_M=128 ")}
    assert largest == {"1.00", "1.02", "1.04", "1.06", "1.30", MARK}


def test_what_changes_nothing_matters_least(swept: Screening) -> None:
    pytest.importorskip("sklearn", reason="fANOVA needs scikit-learn")
    shares, missing = shares_of(swept)
    assert missing == ""
    assert set(shares) == {"fANOVA", "PED-ANOVA"}
    by_fanova = shares["fANOVA"]
    assert set(list(by_fanova)[:2]) == {"BLOCK_M", "num_stages"}
    assert by_fanova["BLOCK_N"] < 0.05
    assert set(combined(shares)) == {parameter.name for parameter in IMPLEMENTATION.space.parameters}


def test_the_failure_map_is_by_its_parameters(rows: list[Trial]) -> None:
    screened = [trial for trial in rows if trial.stage is Stage.SCREEN]
    drawn = words(failures_section(IMPLEMENTATION.space.parameters, screened))
    narrow = [trial for trial in screened if trial.config["BLOCK_N"] == 32]
    failed = [trial for trial in narrow if trial.status is Status.OUT_OF_RESOURCES]
    assert drawn.startswith("8 of 128 screened configs failed (6.2 %).")
    assert f"BLOCK_N 16 0 % of {sum(t.config['BLOCK_N'] == 16 for t in screened)} 32" in drawn
    assert f"32 {100 * len(failed) / len(narrow):.0f} % of {len(narrow)} 64 0 %" in drawn
    assert "num_stages 1 0 %" in drawn
    assert "BLOCK_Q" not in drawn


def test_the_sample_is_what_a_recording_would_have_left() -> None:
    for trial in [*flex_sample.winners(), *flex_sample.sweep()]:
        assert isinstance(trial.shape, AttentionShape)
        assert IMPLEMENTATION.space.why_invalid(trial.config, trial.shape, NVIDIA_H200) is None
        assert IMPLEMENTATION.is_source_of(trial)
