"""Axes, names and points of the report's charts."""

import math
import re

import pytest

from autotune.lab.drawing.chart import Chart, log_axis, regret_axis, roof_chart
from autotune.roofline import Roof


def test_axes_hold_what_they_are_made_for() -> None:
    axis = log_axis("x", [3.0, 700.0])
    assert (axis.place(3.0), axis.place(700.0)) == (0.0, 1.0)
    assert axis.place(math.sqrt(3.0 * 700.0)) == pytest.approx(0.5)
    assert [text for _, text in axis.ticks] == ["3", "10", "30", "100", "300"]
    regret = regret_axis("y", [0.0, 2.0, math.inf])
    assert (regret.place(0.0), regret.place(2.0), regret.place(9.0)) == (0.0, 1.0, 1.0)
    assert [text for _, text in regret.ticks] == ["0 %", "1 %", "3 %", "10 %", "30 %", "100 %"]


@pytest.mark.parametrize("low", [0.0123, 0.3, 1.01, 2.6, 3.36, 5.1, 990.0, 4.1e5])
@pytest.mark.parametrize("ratio", [1.0, 1.55, 2.4, 5.0, 40.0, 900.0, 1e6])
def test_a_logarithmic_axis_has_ticks_enough_to_be_read(low: float, ratio: float) -> None:
    axis = log_axis("x", [low, low * ratio])
    assert 3 <= len(axis.ticks) <= 8
    assert all(axis.low * 0.999 <= tick <= axis.high * 1.001 for tick, _ in axis.ticks)
    assert all(float(text.replace("k", "e3").replace("M", "e6")) == pytest.approx(tick) for tick, text in axis.ticks)


def test_ticks_of_a_short_axis_are_at_equal_steps() -> None:
    assert [text for _, text in log_axis("x", [310.0, 990.0]).ticks] == ["400", "600", "800"]


def test_no_point_of_a_roofline_lies_on_the_frame() -> None:
    chart, _ = roof_chart("across", "up", [(10.0, 3.0), (500.0, 80.0)], Roof(100.0, 900.0))
    for x, y in ((10.0, 3.0), (500.0, 80.0), (500.0, 100.0)):
        assert 0.02 < chart.across.place(x) < 0.98
        assert 0.02 < chart.up.place(y) < 0.98


def test_names_stand_beside_their_points_and_cover_nothing() -> None:
    """Both to the right, the second to the left where a third stands, and none where there is no room at all."""
    chart = Chart(log_axis("x", [1.0, 100.0]), log_axis("y", [1.0, 100.0]))

    def named(*points: tuple[float, float, str]) -> dict[str, float]:
        found = re.findall(r'<text x="([\d.]+)"[^>]*>(.*?)</text>', chart.names(points))
        return {name: float(x) for x, name in found}

    alone = named((10.0, 10.0, "one"))
    assert alone == {"one": pytest.approx(chart.x(10.0) + 7, abs=0.1)}
    assert named((10.0, 10.0, "one"), (12.0, 10.0, "two"))["one"] < chart.x(10.0)
    assert named((100.0, 10.0, "edge"))["edge"] < chart.x(100.0)
    assert named((10.0, 10.0, "x" * 200)) == {}
    crowd = [(10.0 + 0.1 * n, 10.0, f"name {n}") for n in range(12)]
    assert 0 < len(named(*crowd)) < 12
