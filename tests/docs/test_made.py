"""Tables and figures of the documentation are those that the shipped rows make, and README.md fits a screen or two."""

import math
import re
from pathlib import Path

import pytest

from autotune.table import shipped_winners
from benchmarks import documentation
from benchmarks.shipped_problems import benchmark_shape
from tests.docs.blocks import ROOT


@pytest.mark.parametrize("page", documentation.PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_shipped_rows(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert documentation.with_tables(text, documentation.tables()) == text, "run python -m benchmarks.documentation"
    assert "made by benchmarks.documentation" in text


@pytest.mark.parametrize("name", documentation.FIGURES)
def test_figures_are_those_of_the_shipped_rows(name: str, tmp_path: Path) -> None:
    documentation.FIGURES[name](tmp_path / name)
    drawn = (tmp_path / name).read_text(encoding="utf-8")
    assert (documentation.IMAGES / name).read_text(encoding="utf-8") == drawn, "run python -m benchmarks.documentation"


def test_a_table_is_replaced_below_its_comment() -> None:
    text = "a\n<!-- made by benchmarks.documentation: x -->\n\n| old |\n| --- |\n\nb\n"
    assert documentation.with_tables(text, {"x": "| new |\n"}) == (
        "a\n<!-- made by benchmarks.documentation: x -->\n\n| new |\n\nb\n"
    )
    with pytest.raises(KeyError, match="x"):
        documentation.with_tables(text, {})


def test_a_rate_is_the_work_over_the_time() -> None:
    """Of cuDNN's at D = 128, S = 4096, causal: 2 products of 2 FLOPs a multiplication, half of the pairs."""
    (row,) = [
        trial
        for trial in shipped_winners("flash_attention", implementation="gluon_hopper", slug=documentation.H200)
        if trial.shape == benchmark_shape(128, True, 4096)
    ]
    assert row.baseline_timing is not None
    pairs = 4 * 16 * 4096 * 4096 / 2
    expected = 4 * 128 * pairs / row.baseline_timing.median_us / 1e6
    (made,) = [
        each.other_tflops
        for each in documentation.prefills()
        if (each.shape.head_dim, each.shape.seq_q, each.shape.causal) == (128, 4096, True)
    ]
    assert math.isclose(made, expected, rel_tol=1e-3)


def test_the_axis_of_rates_begins_at_nothing() -> None:
    axis = documentation.rate_axis("TFLOP/s", [300.0, 700.0])
    assert (axis.place(0.0), round(axis.place(axis.high / 2), 9), round(axis.high, 6)) == (0.0, 0.5, 770.0)
    assert [text for _, text in axis.ticks] == ["0", "200", "400", "600"]


def test_the_readme_is_short_and_its_picture_small() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 80
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", "\n".join(lines))
    assert [(ROOT / name).stat().st_size < 300_000 for name in pictures] == [True]


def test_the_picture_begins_at_the_first_problem() -> None:
    html = (
        '<h1>T</h1><nav a="b">N</nav><main><div class="cards">C</div><p>S</p><details open id="problem-0">P</details>'
    )
    assert documentation.without_overview(html) == '<h1>T</h1><main><details open id="problem-0">P</details>'
