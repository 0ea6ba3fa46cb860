"""Heat maps: the best time over all other parameters, for each pair of values of two parameters."""

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from autotune.lab.drawing.bars import legend
from autotune.lab.drawing.markup import Html, element, figure, figure_svg
from autotune.lab.report.screening import Screening, grouped, is_timed
from autotune.space import Config, Parameter, Value
from autotune.trial import Trial, median_us
from autotune.units import count_text, short_time_text

USUAL_AXES: Final = (("BLOCK_Q", "BLOCK_K"), ("BLOCK_M", "BLOCK_N"))  # ours, and FlexAttention's
USUAL_PANELS: Final = ("num_warps", "num_stages")
# Times over the best up to which a cell has each colour; beyond the last one it has the palest.
BOUNDS: Final = (1.01, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
CELL_WIDTH, CELL_HEIGHT = 33, 25
GUTTER, HEADER = 30, 20
MARK: Final = "\N{MULTIPLICATION SIGN}"  # in a cell where every config failed; its title has their statuses

ValuePair = tuple[Value, Value]


class HeatLayout(NamedTuple):
    """The parameters of a map's rows and columns, and those that tell groups and maps apart."""

    rows: Parameter
    columns: Parameter
    groups: Parameter | None
    maps: Parameter | None


def choose_layout(screening: Screening, shares: Mapping[str, float]) -> HeatLayout | None:
    """Choose blocks of queries against blocks of keys for each number of warps and stages, where a space has those.

    Otherwise choose the two ordered parameters of the largest shares, for each value of the next two; None where fewer
    than two parameters took more than one value. Without shares the order is that of the space.
    """
    taken = [each for each in screening.space.parameters if len(_values(screening, each)) > 1]
    ranked = sorted(taken, key=lambda parameter: -shares.get(parameter.name, 0.0))
    named = {parameter.name: parameter for parameter in taken}
    blocks = next(([named[name] for name in pair] for pair in USUAL_AXES if named.keys() >= set(pair)), None)
    axes = blocks or sorted([each for each in ranked if each.is_ordered][:2], key=taken.index)
    if len(axes) < 2:
        return None
    usual = [named[name] for name in USUAL_PANELS if name in named]
    rest = usual if len(usual) == 2 and blocks else [parameter for parameter in ranked if parameter not in axes]
    groups, maps = [*rest, None, None][:2]
    return HeatLayout(axes[0], axes[1], groups, maps)


def heat_maps(screening: Screening, layout: HeatLayout) -> Html:
    """Draw the maps of a screening, a group for each value of one parameter, with the legend of their colours."""
    assert screening.best is not None
    by_group = grouped(screening.trials, lambda trial: _value(trial.config, layout.groups))
    columns = _values(screening, layout.columns)
    groups = []
    for group_value in _values(screening, layout.groups):
        trials = by_group[group_value]
        used = {trial.config[layout.rows.name] for trial in trials}
        rows = [value for value in _values(screening, layout.rows) if value in used]
        by_map = grouped(trials, lambda trial: _value(trial.config, layout.maps))
        panels = [
            _panel(screening, layout, (group_value, map_value), by_map[map_value], rows, columns)
            for map_value in _values(screening, layout.maps)
            if map_value in by_map
        ]
        heading = element("h5", _assigned(layout.groups, group_value)) if layout.groups else None
        groups.append(element("div", heading, element("div", *panels, class_="panels"), class_="group"))
    best = short_time_text(median_us(screening.best))
    return figure(
        f"Time over the best, {best}, by {layout.rows.name} (down) and {layout.columns.name} (across)",
        "the best of all other parameters stands in a cell; empty ones were ruled out before compiling or not tried",
        _legend(),
        *groups,
    )


def _panel(
    screening: Screening,
    layout: HeatLayout,
    key: ValuePair,
    trials: Sequence[Trial],
    rows: Sequence[Value],
    columns: Sequence[Value],
) -> Html:
    row_name, column_name = layout.rows.name, layout.columns.name
    by_cell = grouped(trials, lambda trial: (trial.config[row_name], trial.config[column_name]))
    parts = [
        element("text", _word(value), x=GUTTER + (index + 0.5) * CELL_WIDTH, y=float(HEADER - 6), class_="tick middle")
        for index, value in enumerate(columns)
    ]
    parts += [
        element("text", _word(value), x=float(GUTTER - 5), y=HEADER + index * CELL_HEIGHT + 17.0, class_="tick end")
        for index, value in enumerate(rows)
    ]
    for (row, row_value), (column, column_value) in itertools.product(enumerate(rows), enumerate(columns)):
        if found := by_cell.get((row_value, column_value)):
            corner = (GUTTER + column * CELL_WIDTH, HEADER + row * CELL_HEIGHT)
            parts.append(_cell(screening, found, corner, f"{row_name}={row_value} {column_name}={column_value}"))
    times = [median_us(trial) for trial in trials if is_timed(trial)]
    fastest = "no config ran"
    if times:
        fastest = f"the fastest of {count_text(len(times), 'config')} takes {short_time_text(min(times))}"
    names = (_assigned(layout.groups, key[0]), _assigned(layout.maps, key[1]))
    title = " ".join(filter(None, ("Heat map", *names)))
    description = f"Rows are {row_name}, columns {column_name}; {fastest}."
    width, height = GUTTER + len(columns) * CELL_WIDTH + 1, HEADER + len(rows) * CELL_HEIGHT + 1
    drawing = figure_svg(title, description, width, height, *parts)
    return element("div", element("h6", names[1]), drawing, class_="panel")


def _cell(screening: Screening, trials: Sequence[Trial], corner: tuple[int, int], name: str) -> Html:
    assert screening.best is not None
    x, y = corner
    best = min(filter(is_timed, trials), key=median_us, default=None)
    if best is None:
        statuses = ", ".join(f"{number} {status}" for status, number in Counter(t.status for t in trials).items())
        title, text, kind = f"{name}: {statuses}", MARK, "failed"
    else:
        ratio = median_us(best) / median_us(screening.best)
        title = f"{name}: {short_time_text(median_us(best))}"
        text = f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"
        kind = f"heat-{bisect_left(BOUNDS, ratio - 1e-9)}"
    kind += " is-default" if any(trial.is_default for trial in trials) else ""
    kind += " is-best" if best is screening.best else ""
    return element(
        "g",
        element("title", title),
        element("rect", x=x + 1, y=y + 1, width=CELL_WIDTH - 2, height=CELL_HEIGHT - 2, rx=3),
        element("text", text, x=x + CELL_WIDTH / 2, y=y + 17, class_="middle"),
        class_=kind,
    )


def _legend() -> Html:
    """Explain the colours; they are the same for every screening, so that maps can be compared."""
    square = element("rect", x=1, y=1, width=14, height=14, rx=3)
    labels = [*(f"to {bound:g}x" for bound in BOUNDS), f"above {BOUNDS[-1]:g}x"]
    keys = [(element("g", square, class_=f"heat-{index}"), label) for index, label in enumerate(labels)]
    mark = element("text", MARK, x=8, y=12, class_="middle")
    return legend(
        [
            *keys,
            (element("g", square, mark, class_="failed"), "failed"),
            (element("g", square, class_="key-best is-best"), "fastest"),
            (element("g", square, class_="key-default is-default"), "the default is here"),
        ]
    )


def _values(screening: Screening, parameter: Parameter | None) -> list[Value]:
    """Return the values that were tried, in order; None first, where a parameter did not apply."""
    taken = {_value(trial.config, parameter) for trial in screening.trials}
    return [value for value in (None, *(parameter.values if parameter else ())) if value in taken]


def _value(config: Config, parameter: Parameter | None) -> Value:
    return None if parameter is None else config[parameter.name]


def _assigned(parameter: Parameter | None, value: Value) -> str:
    return "" if parameter is None else f"{parameter.name} {_word(value)}"


def _word(value: Value) -> str:
    return "-" if value is None else str(value)
