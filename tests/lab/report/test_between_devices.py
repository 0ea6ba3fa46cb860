"""The report says how optima transfer between kinds of devices, and where that is not known."""

from dataclasses import replace
from datetime import UTC, datetime

from autotune.device import NVIDIA_H200
from autotune.lab.report.document import html_report
from autotune.trial import Stage, Trial
from tests import sample
from tests.dispatch.tables import SLOWER, THIRD

H100 = replace(NVIDIA_H200, name="NVIDIA H100 80GB HBM3", memory_mib=81559)


def page(*trials: Trial, grids: list[Trial] | None = None) -> str:
    made_at = datetime(2026, 11, 25, tzinfo=UTC)
    return html_report(trials, source="a test", made_at=made_at, served=trials, grids=grids or [])


def test_one_kind_has_no_such_section() -> None:
    assert "How optima transfer" not in page(sample.trial())


def test_ratios_and_what_is_unknown_are_listed() -> None:
    won = [
        sample.trial(chosen=SLOWER),
        sample.trial(chosen=THIRD, device=H100, race_id="b"),
    ]
    times = {SLOWER: 100.0, THIRD: 125.0}
    grids = [
        sample.trial(chosen=config, stage=Stage.SCREEN, race_id="", timing=sample.timing(median))
        for config, median in times.items()
    ]
    written = page(*won, grids=grids)
    assert 'href="#transfer"' in written
    assert written.count("1.25x") == 3  # the mean, the worst and the shape
    assert "not timed there" in written
    text = page(sample.trial(), sample.trial(sample.shape(2048), device=H100, race_id="b"))
    assert "No shape was raced on two kinds of devices." in text
