"""The report in a real browser: opened from a file without a network, every figure visible, readable on a phone.

Screenshots of the page, light, dark and on a phone, stay in ``artefacts/``.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from autotune.lab.report import document
from autotune.lab.report.document import html_report
from autotune.lab.roofline.saved import read_roofline
from autotune.table import shipped_sweeps, shipped_winners
from autotune.trial import Outcome, Status, Trial
from tests import sample
from tests.lab.report.chromium import Tab, browse, find_chromium
from tests.lab.roofline.roofline_sample import saved_roofline

pytestmark = pytest.mark.slow

ARTEFACTS: Final = Path(__file__).resolve().parents[2] / "artefacts"
DESKTOP, PHONE = (1200, 900), (390, 844)
HOSTILE: Final = "<script>document.title='taken'</script><img src=http://example.invalid/x onerror=alert(1)>"

# Drawings that take no room, or lie to the right of the page where nothing scrolls to them.
HIDDEN: Final = """
[...document.querySelectorAll('figure, svg[role=img]')].filter(each => {
  const box = each.getBoundingClientRect();
  return !each.checkVisibility() || box.width < 40 || box.height < 30 || box.right > innerWidth + 1;
}).map(each => each.outerHTML.slice(0, 200))
"""
# Text of drawings that would be smaller than 7.5 CSS pixels.
TINY: Final = """
[...document.querySelectorAll('svg[role=img]')].filter(each => {
  const text = each.querySelector('text');
  const scale = each.getBoundingClientRect().width / each.viewBox.baseVal.width;
  return text && parseFloat(getComputedStyle(text).fontSize) * scale < 7.5;
}).map(each => each.getAttribute('aria-label'))
"""
# Contrast of text with what is behind it (WCAG 2.2: 4.5 for text), for text of other colours than the page's.
CONTRAST: Final = """
(() => {
  const light = text => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
      .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const low = [];
  for (const cell of document.querySelectorAll('.panel g')) {
    const found = ratio(getComputedStyle(cell.querySelector('text')).fill,
      getComputedStyle(cell.querySelector('rect')).fill);
    if (found < 4.5) low.push(cell.getAttribute('class') + ' ' + found.toFixed(2));
  }
  for (const [text, box] of [['.muted', 'body'], ['figcaption small', 'figure'], ['.good strong', '.good'],
      ['.bad strong', '.bad'], ['a', 'body'], ['.up strong', '.scroll'], ['.down strong', '.scroll']]) {
    const inner = document.querySelector(text), outer = document.querySelector(box);
    if (!inner || !outer) continue;
    const found = ratio(getComputedStyle(inner).color, getComputedStyle(outer).backgroundColor);
    if (found < 4.5) low.push(text + ' ' + found.toFixed(2));
  }
  return [...new Set(low)];
})()
"""


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    """Shipped winners and sweeps, and failures whose message would take over a page that is not careful."""
    names = ("flash_attention", "paged_decode", "paged_prefill")
    rows = [trial for name in names for trial in shipped_winners(name)]
    one_each = {sweep.implementation: sweep for sweep in shipped_sweeps("flash_attention")}  # a forest takes seconds
    rows += [trial for sweep in one_each.values() for trial in sweep.trials()]
    hostile = [
        replace(trial, outcome=Outcome(candidate=trial.candidate, status=Status.LAUNCH_ERROR, message=HOSTILE))
        for trial in sample.sweep(sample.shape(64))[:30]
    ]
    return [*rows, *hostile]


@pytest.fixture(scope="module")
def page(trials: list[Trial], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    path, roofline = folder / "report.html", folder / "roofline.json"
    roofline.write_text(json.dumps(saved_roofline()), encoding="utf-8")
    text = html_report(
        trials,
        source="the shipped tables",
        made_at=datetime(2026, 11, 28, tzinfo=UTC),
        rooflines=[read_roofline(roofline)],
    )
    assert len(text.encode()) < 3_000_000
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def tab(page: Path, tmp_path: Path) -> Iterator[Tab]:
    browser = find_chromium()
    if browser is None and not os.environ.get("CI"):
        pytest.skip("no Chromium here: apt-get install chromium")
    assert browser is not None, "CI has no Chromium: .ci/run installs it"
    with browse(browser, tmp_path / "profile") as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [("light", DESKTOP, "light"), ("dark", DESKTOP, "dark"), ("phone", PHONE, "light"), ("phone-dark", PHONE, "dark")],
)
def test_every_figure_is_visible_and_nothing_complains(
    tab: Tab, page: Path, name: str, size: tuple[int, int], scheme: str
) -> None:
    tab.show(*size, scheme)
    tab.open(page.as_uri())
    ARTEFACTS.mkdir(exist_ok=True)
    tab.screenshot(ARTEFACTS / f"report-{name}.png", size[0], 4 * size[1])
    top = tab.evaluate("document.getElementById('roofline').getBoundingClientRect().top")
    tab.screenshot(ARTEFACTS / f"roofline-{name}.png", size[0], 2 * size[1], top=top)
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert tab.evaluate("document.querySelectorAll('svg[role=img]').length") > 50
    assert tab.evaluate(HIDDEN) == []
    assert tab.evaluate(TINY) == []
    assert tab.evaluate(CONTRAST) == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert tab.complaints() == []
    assert tab.requested() == [page.as_uri()]


def test_a_phone_has_one_column(tab: Tab, page: Path) -> None:
    tab.open(page.as_uri())
    lefts = "new Set([...document.querySelectorAll('.columns > *')].map(each => each.getBoundingClientRect().left))"
    first = f"[...{lefts}].filter(left => left < 60).length == {lefts}.size"
    tab.show(*DESKTOP, "light")
    assert tab.evaluate(first) is False
    tab.show(*PHONE, "light")
    assert tab.evaluate(first) is True


def test_light_and_dark_differ_as_the_reader_asks(tab: Tab, page: Path) -> None:
    tab.open(page.as_uri())
    colours = {}
    for scheme in ("light", "dark"):
        tab.show(*DESKTOP, scheme)
        colours[scheme] = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colours["light"] != colours["dark"]


def test_what_stands_in_a_table_does_not_run(tab: Tab, page: Path) -> None:
    tab.open(page.as_uri())
    assert tab.evaluate("document.title") == "Tuning report: the shipped tables"
    assert tab.evaluate("document.body.innerText.includes('onerror=alert(1)')") is True
    assert tab.evaluate("document.querySelectorAll('script, img').length") == 0


def test_links_lead_to_what_is_shown(tab: Tab, page: Path) -> None:
    """A link to a problem opens its fold-out."""
    tab.open(page.as_uri())
    tab.show(*DESKTOP, "light")
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = false)")
    tab.evaluate("document.querySelector('td a').click()")
    tab.evaluate("new Promise(done => setTimeout(done, 300))")
    assert tab.evaluate("document.querySelectorAll('details[open]').length") == 1


def test_paper_has_every_problem(tab: Tab, page: Path) -> None:
    tab.show(800, 1100, "light", medium="print")
    tab.open(page.as_uri())
    assert tab.evaluate(HIDDEN.replace("box.right > innerWidth + 1", "false")) == []


def test_the_checks_find_what_they_look_for(tab: Tab, tmp_path: Path) -> None:
    """A page that breaks each rule: hidden and tiny drawings, a request, a script, an error."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><meta charset=utf-8><body><figure style='display:none'></figure>"
        "<svg role=img aria-label=small viewBox='0 0 900 90' width=300><text>a</text></svg>"
        "<div class=panel><svg><g><rect fill=gray></rect><text fill=gray>1</text></g></svg></div>"
        "<img src=picture.png><script>console.error('no'); nothing()</script>"
    )
    tab.show(*PHONE, "light")
    tab.open(bad.as_uri())
    assert len(tab.evaluate(HIDDEN)) >= 1
    assert tab.evaluate(TINY) == ["small"]
    assert len(tab.evaluate(CONTRAST)) == 1
    assert len(tab.complaints()) >= 2
    assert len(tab.requested()) == 2


def test_the_limit_of_details_is_what_the_page_is_made_with() -> None:
    assert 2 * document.MAX_DETAIL_BYTES <= 3_000_000
