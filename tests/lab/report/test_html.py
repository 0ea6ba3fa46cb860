"""The HTML report: whole, closed to the network, escaped, and true to the trials that it is about."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import UsageError
from autotune.lab.report import document
from autotune.lab.report.document import html_report
from autotune.lab.report.parameters import Shares
from autotune.lab.report.screening import Screening
from autotune.lab.report.style import STYLE
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.trial import Conditions, Outcome, Policy, Stage, Status, Trial
from tests import flex_sample, sample

NOW = datetime(2026, 11, 28, tzinfo=UTC)
VOID = {"meta", "br"}
HOSTILE = '</style><script>alert("1")</script><img src=x onerror=alert(2)>&amp;\N{SNOWMAN}'
FAILURE_MAP = "Failure map: share of the configs"
LOADING = {"src", "srcset", "href", "data", "action", "poster", "background", "ping", "xlink:href"}


class Page(HTMLParser):
    """A page as its tags, their attributes and its text; refuses one whose tags are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def render(trials: Sequence[Trial], source: str = "a test") -> str:
    return html_report(trials, source=source, made_at=NOW)


@pytest.fixture(autouse=True)
def shares_of_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importance has its own tests; a forest for each page here would take seconds."""
    shares = {"fANOVA": {"num_warps": 0.625, "BLOCK_Q": 0.375}, "PED-ANOVA": {"BLOCK_Q": 0.5, "num_warps": 0.5}}
    monkeypatch.setattr(document, "shares_of", lambda problem: (shares, ""))


@pytest.fixture(scope="module")
def sweep() -> list[Trial]:
    return sample.sweep(sample.shape(1024))


def test_a_page_is_one_whole_file(sweep: list[Trial]) -> None:
    text = render(sweep)
    page = Page(text)
    assert text.startswith("<!doctype html>\n<html lang=")
    assert {"html", "head", "title", "body", "header", "main", "footer", "figure", "svg", "table"} <= {
        tag for tag, _ in page.tags
    }
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {str(attributes["href"]) for attributes in page.attributes("a")}
    assert targets <= {f"#{name}" for name in ids}
    assert len(text.encode()) < 3_000_000


def test_nothing_is_loaded_and_nothing_runs(sweep: list[Trial]) -> None:
    text = render([*sweep, sample.trial()])
    page = Page(text)
    assert {"script", "link", "img", "iframe", "object", "embed", "form", "base"}.isdisjoint(
        tag for tag, _ in page.tags
    )
    for _, attributes in page.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes), attributes
        assert all(str(attributes[name]).startswith("#") for name in LOADING & attributes.keys())
    assert re.search(r"url\(|@import|//", STYLE) is None
    (policy,) = [m["content"] for m in page.attributes("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    assert len(style) == 1
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_a_reader_on_a_phone_in_the_dark_on_paper_or_listening_is_thought_of(sweep: list[Trial]) -> None:
    page = Page(render(sweep))
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.attributes("meta")
    for query in ("prefers-color-scheme:dark", "max-width:700px", "@media print"):
        assert query in STYLE
    drawings = [svg for svg in page.attributes("svg") if svg.get("aria-hidden") != "true"]
    assert drawings
    for svg in drawings:
        assert svg["role"] == "img"
        assert svg["aria-label"]
    text = render(sweep)
    drawn = re.findall(r'<svg[^>]*role="img"[^>]*>(.{0,30})', text)
    assert all(inner.startswith("<title>") for inner in drawn)
    assert text.count("<desc>") == len(drawn)
    assert text.count("<figure") == text.count("<figcaption")


@pytest.mark.parametrize("field", ["message", "study", "worker", "baseline", "throttle"])
def test_what_stands_in_a_table_is_text(sweep: list[Trial], field: str) -> None:
    conditions = Conditions(throttle_reasons=HOSTILE if field == "throttle" else "")
    changes: dict[str, Any] = {"conditions": conditions}
    if field != "throttle":
        changes[field] = HOSTILE
    bad = sample.trial(sample.shape(1024), started_at=NOW, **changes)
    failed = replace(
        bad,
        stage=Stage.SCREEN,
        race_id="",
        outcome=Outcome(candidate=bad.candidate, status=Status.COMPILE_ERROR, message=HOSTILE, conditions=conditions),
    )
    text = render([*sweep[:40], bad, failed], source=HOSTILE)
    page = Page(text)
    assert {"script", "img"}.isdisjoint(tag for tag, _ in page.tags)
    assert HOSTILE in page.text
    assert "<script" not in text


def test_a_device_of_a_hostile_name_is_text() -> None:
    device = replace(NVIDIA_H200, name=f"A {HOSTILE}", arch='"><b>')
    page = Page(render([sample.trial(device=device)]))
    assert {"script", "img", "b"} & {tag for tag, _ in page.tags} <= {"b"}
    assert HOSTILE in page.text


def test_a_table_of_several_implementations_says_of_each_how_it_stands() -> None:
    text = Page(render([sample.trial(), *flex_sample.winners()])).text
    assert "1.05x flash_attention/triton against the fastest baseline ahead in 1 of 1" in text
    assert "0.50x flash_attention/flex against the fastest baseline ahead in 0 of 8" in text


def test_the_summary_says_what_was_gained_and_against_what() -> None:
    """Times over 200 us: defaults of 240 and 200, baselines of 210 and 100."""
    gained = sample.trial(sample.shape(1024))
    level = sample.trial(
        sample.shape(2048), default_timing=sample.timing(200.0), baseline_timing=sample.timing(100.0), is_default=True
    )
    text = Page(render([gained, level])).text
    assert "1.10x against the default geometric mean; at most 1.20x" in text  # sqrt(1.2 x 1.0) = 1.095
    assert "0.72x against the fastest baseline ahead in 1 of 2" in text  # sqrt(1.05 x 0.5) = 0.725
    assert "Worth using: 1 of 2 winners" in text
    assert f"The largest gain is 1.20x (1.19-1.21) at {sample.shape(1024)}" in text
    assert "The default itself is among the fastest for 1 problem." in text
    assert "Against sdpa cudnn: ahead in 1, behind in 1 of 2" in text
    assert "The table holds winners alone" in text


def test_what_was_tried_is_counted(sweep: list[Trial]) -> None:
    screened = [trial for trial in sweep if trial.stage is Stage.SCREEN]
    failed = [
        replace(
            t, outcome=Outcome(candidate=t.candidate, status=Status.OUT_OF_RESOURCES, message=f"{n} bytes, too many")
        )
        for n, t in enumerate(screened[:8])
    ]
    text = Page(render([*failed, *screened[8:]])).text
    assert f"Screened: {len(screened)} configs of 1 problem; " in text
    assert "most often as out_of_resources (8)" in text
    assert "By fANOVA num_warps (62 %) and BLOCK_Q (38 %) matter most." in text
    assert "8 out_of_resources 0 bytes, too many and 7 variants of it" in text


def test_every_part_counts_the_same_trials_and_tells_one_share_of_failures(sweep: list[Trial]) -> None:
    """A search of 40 configs of which 4 failed, one of them tried again, a race, and a config that failed in it."""
    rows = [replace(trial, executor="replay") for trial in sweep]
    raced = [trial for trial in rows if trial.stage is Stage.RACE]
    screened = [trial for trial in rows if trial.stage is Stage.SCREEN][:40]
    failed = [
        replace(trial, outcome=Outcome(candidate=trial.candidate, status=Status.HANG, message="no answer"))
        for trial in [*screened[:4], raced[-1]]
    ]
    again = replace(failed[0], started_at=NOW)
    text = Page(render([*failed, again, *screened[4:], *raced[:-1]])).text
    assert f"{41 + len(raced)} trials 40 screened, 10 % of them failed; 1 tried again; {len(raced)} raced" in text
    assert "Screened: 40 configs of 1 problem; 10 % failed, most often as hang (4)." in text
    assert f"4 of 40 screened configs failed (10 %); 1 trial of races did. {FAILURE_MAP}" in text
    assert "5 hang no answer" in text
    times = 36 + len(raced) - 1
    assert f"{times} of {times} times were replayed from a recorded sweep, not measured; 36 of them are of" in text
    assert f"36 of them are of screening, {len(raced) - 1} of races." in text
    assert "36 configs that ran at screening and 1 winner at" in text
    assert "A search, 40 configs, of which 36 ran" in text


def test_the_winner_of_a_table_counts_and_no_other_race(sweep: list[Trial]) -> None:
    """The later race of the sweep took 200 us, that of the table 190; heat maps stay those of the sweep."""
    earlier = sample.START - timedelta(days=1)
    served = sample.trial(timing=sample.timing(190.0), race_id="earlier", started_at=earlier)
    elsewhere = sample.trial(sample.shape(2048), race_id="other", timing=sample.timing(150.0))
    rows = [*sweep, served, elsewhere]
    text = Page(html_report(rows, source="a test", made_at=NOW, served=[served])).text
    listed = text[text.index("Winners, each with") : text.index("Speed in TFLOP/s")]
    assert "190.0 us" in listed
    assert "200.0 us" not in listed
    assert "150.0 us" in listed  # no row of the table is of this problem
    assert "The fastest takes 200 us at screening" in text
    assert "200.0 us" in Page(render(rows)).text


def test_each_problem_is_told_of_before_it_is_weighed(sweep: list[Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []

    def weigh(problem: Screening) -> tuple[Shares, str]:
        order.append(problem.first.shape)
        return {}, ""

    monkeypatch.setattr(document, "shares_of", weigh)
    rows = [*sweep, *sample.sweep(sample.shape(2048))[:40]]

    def tell(problem: Screening, number: int, of: int) -> None:
        order.append((problem.first.shape, number, of))

    html_report(rows, source="a test", made_at=NOW, on_screening=tell)
    first, second = sample.shape(1024), sample.shape(2048)
    assert order == [(first, 1, 2), first, (second, 2, 2), second]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"executor": "replay"}, "1 of 2 times were replayed"),
        ({"error": None}, "1 timed row of 2 carry no check"),
        ({"conditions": Conditions(contended=True)}, "1 time were taken beside another process"),
        ({"conditions": Conditions(throttle_reasons="power")}, "The GPU throttled in 1 measurement: power (1)."),
        ({"source_hash": "0" * 64}, "1 row of flash_attention/triton are of another kernel source"),
        ({"toolchain": replace(sample.TOOLCHAIN, triton="3.9.0")}, "Rows come from 2 toolchains"),
        ({"timing": sample.timing(200.0, 0.2)}, "±20 % at most"),
    ],
)
def test_what_speaks_against_the_numbers_is_said(changes: dict[str, Any], words: str) -> None:
    def noted(*trials: Trial) -> list[str]:
        text = render(trials)
        return re.findall(r'<li class="bad"><strong>Note</strong><span>(.*?)</span>', text)

    sound = sample.trial(sample.shape(2048))
    assert noted(sound) == []
    (note,) = noted(sound, sample.trial(**changes))
    assert words in note


def test_rows_that_may_not_be_compared_are_told_apart(sweep: list[Trial]) -> None:
    eager = [replace(trial, policy=Policy("eager", "warm")) for trial in sweep[:20]]
    older = [replace(trial, source_hash="0" * 64) for trial in sweep[:30]]
    text = Page(render([*sweep, *eager, *older])).text
    assert "3 problems screened 1 sweep, 2 searches" in text
    assert f"{sample.shape(1024)}, eager warm" in text


def test_devices_that_differ_in_their_power_cap_alone_are_told_apart() -> None:
    capped = sample.trial(device=replace(NVIDIA_H200, power_cap_watts=500))
    text = Page(render([sample.trial(), capped])).text
    assert "flash_attention on NVIDIA H200, 700 W" in text
    assert "flash_attention on NVIDIA H200, 500 W" in text


def test_a_page_of_many_problems_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sweeps fit a page made smaller for the test; the others are counted, and links lead to those that fit."""
    rows = [trial for seq in (256, 512, 1024, 2048) for trial in sample.sweep(sample.shape(seq))[:60]]
    whole = render(rows)
    assert whole.count("<details") == 4
    monkeypatch.setattr(document, "MAX_DETAIL_BYTES", 50_000)
    text = render(rows)
    shown = text.count("<details")
    assert 0 < shown < 4
    assert f"{4 - shown} more problem" in Page(text).text
    monkeypatch.setattr(document, "MAX_DETAILED", 1)
    assert render(rows).count("<details") == 1


def test_hundreds_of_winners_are_listed_and_the_rest_counted() -> None:
    rows = [sample.trial(sample.shape(64 + seq, batch=1)) for seq in range(600)]
    text = render(rows)
    assert "100 more winners not listed." in text
    assert "560 more winners, nearer to the default, not drawn" in text
    assert len(text.encode()) < 3_000_000


def test_equal_rows_make_equal_pages(sweep: list[Trial]) -> None:
    assert render(sweep) == render([*reversed(sweep), *sweep])


def test_a_race_without_a_default_or_a_baseline_is_told() -> None:
    text = Page(render([sample.trial(default_timing=None, baseline="", baseline_timing=None)])).text
    assert "not measured" in text
    assert "1 winner" in text


def test_trials_that_all_failed_make_a_page(sweep: list[Trial]) -> None:
    hang = [
        replace(t, stage=Stage.SCREEN, race_id="", outcome=Outcome(candidate=t.candidate, status=Status.HANG))
        for t in sweep[:20]
    ]
    text = Page(render(hang)).text
    assert "No race has decided yet" in text
    assert "none ran" in text
    assert "20 hang no message" in text


def test_a_search_of_a_day_ago_is_dated(sweep: list[Trial]) -> None:
    later = replace(sweep[0], started_at=sample.START + timedelta(days=1))
    assert "2026-11-21 to 2026-11-22" in Page(render([sweep[1], later])).text


def test_no_rows_make_no_report() -> None:
    with pytest.raises(UsageError, match=r"trials=\[\] make no report"):
        render([])


def test_the_operation_of_the_sample_is_the_real_one() -> None:
    assert IMPLEMENTATION.operation in render([sample.trial()])
