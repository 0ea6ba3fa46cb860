"""Heat maps: the best time over all other parameters, for each pair of values of two parameters."""

import itertools
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from autotune.lab.drawing.markup import Html, element, figure_svg
from autotune.lab.report.screening import RIGHT, Screening, median_us
from autotune.space import Config, Parameter, Value
from autotune.trial import Trial
from autotune.units import count_text, short_time_text

USUAL_AXES: Final = (("BLOCK_Q", "BLOCK_K"), ("BLOCK_M", "BLOCK_N"))  # ours, and FlexAttention's
USUAL_PANELS: Final = ("num_warps", "num_stages")
# Times over the best up to which a cell has each colour; beyond the last one it has the palest.
BOUNDS: Final = (1.01, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
CELL_WIDTH, CELL_HEIGHT = 33, 25
GUTTER, HEADER = 30, 20
MARK: Final = "\N{MULTIPLICATION SIGN}"  # in a cell where every config failed; how, its title says


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
    taken = [
        parameter
        for parameter in screening.space.parameters
        if len({trial.config[parameter.name] for trial in screening.trials}) > 1
    ]
    ordered = sorted((p for p in taken if p.is_ordered), key=lambda parameter: -shares.get(parameter.name, 0.0))
    named = {parameter.name: parameter for parameter in taken}
    blocks = next(([named[name] for name in pair] for pair in USUAL_AXES if named.keys() >= set(pair)), None)
    axes = blocks or sorted(ordered[:2], key=taken.index)
    if len(axes) < 2:
        return None
    rest = sorted((p for p in taken if p not in axes), key=lambda parameter: -shares.get(parameter.name, 0.0))
    usual = [named[name] for name in USUAL_PANELS if name in named]
    others = (usual if len(usual) == 2 and blocks else rest[:2]) + [None, None]
    return HeatLayout(axes[0], axes[1], others[0], others[1])


def heat_maps(screening: Screening, layout: HeatLayout) -> Html:
    """Draw the maps of a screening, a group for each value of one parameter, with the legend of their colours."""
    assert screening.best is not None
    cells = _cells(screening, layout)
    columns = _values(screening, layout.columns)
    groups = []
    for group_value in _values(screening, layout.groups):
        used = {row for (value, _), found in cells.items() if value == group_value for row, _ in found}
        rows = [value for value in _values(screening, layout.rows) if value in used]
        panels = [
            _panel(screening, layout, (group_value, map_value), found, rows, columns)
            for map_value in _values(screening, layout.maps)
            if (found := cells.get((group_value, map_value)))
        ]
        if panels:
            heading = _assigned(layout.groups, group_value)
            groups.append(
                element(
                    "div",
                    element("h5", heading) if heading else None,
                    element("div", *panels, class_="panels"),
                    class_="group",
                )
            )
    caption = (
        f"Time over the best, {short_time_text(median_us(screening.best))}, by {layout.rows.name} (down) and "
        f"{layout.columns.name} (across)"
    )
    rest = "the best of all other parameters stands in a cell; empty ones were ruled out before compiling or not tried"
    return element(
        "figure",
        element("figcaption", caption, element("small", rest)),
        _legend(),
        *groups,
        class_="heat",
    )


def _cells(
    screening: Screening, layout: HeatLayout
) -> dict[tuple[Value, Value], dict[tuple[Value, Value], list[Trial]]]:
    found: dict[tuple[Value, Value], dict[tuple[Value, Value], list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in screening.trials:
        panel = (_value(trial.config, layout.groups), _value(trial.config, layout.maps))
        cell = (trial.config[layout.rows.name], trial.config[layout.columns.name])
        found[panel][cell].append(trial)
    return found


def _panel(
    screening: Screening,
    layout: HeatLayout,
    key: ValuePair,
    cells: Mapping[ValuePair, Sequence[Trial]],
    rows: Sequence[Value],
    columns: Sequence[Value],
) -> Html:
    title = " ".join(filter(None, (_assigned(layout.groups, key[0]), _assigned(layout.maps, key[1]))))
    parts = [
        element("text", _word(value), x=GUTTER + (index + 0.5) * CELL_WIDTH, y=float(HEADER - 6), class_="tick middle")
        for index, value in enumerate(columns)
    ]
    parts += [
        element("text", _word(value), x=float(GUTTER - 5), y=HEADER + index * CELL_HEIGHT + 17.0, class_="tick end")
        for index, value in enumerate(rows)
    ]
    times = []
    for (row, row_value), (column, column_value) in itertools.product(enumerate(rows), enumerate(columns)):
        trials = cells.get((row_value, column_value))
        if not trials:
            continue
        corner = (GUTTER + column * CELL_WIDTH, HEADER + row * CELL_HEIGHT)
        parts.append(
            _cell(screening, trials, corner, f"{layout.rows.name}={row_value} {layout.columns.name}={column_value}")
        )
        times += [median_us(trial) for trial in trials if trial.timing and trial.status in RIGHT]
    told = (
        f"the fastest of {count_text(len(times), 'config')} takes {short_time_text(min(times))}"
        if times
        else "no config ran"
    )
    width, height = GUTTER + len(columns) * CELL_WIDTH + 1, HEADER + len(rows) * CELL_HEIGHT + 1
    described = f"Rows are {layout.rows.name}, columns {layout.columns.name}; {told}."
    drawing = figure_svg(f"Heat map {title}".strip(), described, width, height, *parts)
    return element("div", element("h6", _assigned(layout.maps, key[1])), drawing, class_="panel")


def _cell(screening: Screening, trials: Sequence[Trial], corner: tuple[int, int], name: str) -> Html:
    assert screening.best is not None
    x, y = corner
    timed = [trial for trial in trials if trial.timing and trial.status in RIGHT]
    kind = ""
    if any(trial.is_default for trial in trials):
        kind = " is-default"
    if not timed:
        statuses = ", ".join(f"{number} {status}" for status, number in Counter(t.status for t in trials).items())
        title, text, colour = f"{name}: {statuses}", MARK, "failed"
    else:
        best = min(timed, key=median_us)
        ratio = median_us(best) / median_us(screening.best)
        kind += " is-best" if best is screening.best else ""
        title, text = f"{name}: {short_time_text(median_us(best))}", _ratio(ratio)
        colour = f"heat-{bisect_left(BOUNDS, ratio - 1e-9)}"
    return element(
        "g",
        element("title", title),
        element("rect", x=x + 1, y=y + 1, width=CELL_WIDTH - 2, height=CELL_HEIGHT - 2, rx=3),
        element("text", text, x=x + CELL_WIDTH / 2, y=y + 17, class_="middle"),
        class_=f"{colour}{kind}",
    )


def _legend() -> Html:
    """Explain the colours; they are the same for every screening, so that maps can be compared."""
    labels = [f"to {_bound(bound)}" for bound in BOUNDS] + [f"above {_bound(BOUNDS[-1])}"]
    keys = [_key(f"heat-{index}", label) for index, label in enumerate(labels)]
    keys += [
        _key("failed", "failed", MARK),
        _key("key-best is-best", "fastest"),
        _key("key-default is-default", "the default is here"),
    ]
    return element("p", *keys, class_="legend")


def _key(kind: str, label: str, text: str = "") -> Html:
    swatch = element(
        "svg",
        element(
            "g",
            element("rect", x=1, y=1, width=14, height=14, rx=3),
            element("text", text, x=8, y=12, class_="middle") if text else None,
            class_=kind,
        ),
        viewBox="0 0 16 16",
        class_="swatch",
        aria_hidden="true",
    )
    return element("span", swatch, label)


def _values(screening: Screening, parameter: Parameter | None) -> list[Value]:
    """Return the values that were tried, in order; None first, where a parameter did not apply."""
    if parameter is None:
        return [None]
    taken = {trial.config[parameter.name] for trial in screening.trials}
    return [value for value in (None, *parameter.values) if value in taken]


def _value(config: Config, parameter: Parameter | None) -> Value:
    return None if parameter is None else config[parameter.name]


def _assigned(parameter: Parameter | None, value: Value) -> str:
    return "" if parameter is None else f"{parameter.name} {_word(value)}"


def _word(value: Value) -> str:
    return "-" if value is None else str(value)


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"


def _bound(bound: float) -> str:
    return f"{bound:g}x"
