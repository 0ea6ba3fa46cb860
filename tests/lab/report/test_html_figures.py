"""Figures of the report: what is drawn is what the trials say."""

import math
import re
from dataclasses import replace
from itertools import product

import pytest

from autotune.device import NVIDIA_H200
from autotune.lab.drawing.bars import Bar, bar_rows
from autotune.lab.drawing.chart import Chart, log_axis, regret_axis
from autotune.lab.drawing.markup import element, join, table
from autotune.lab.report.failures import failures_section
from autotune.lab.report.heat import choose_layout, heat_maps
from autotune.lab.report.parameters import combined, mean_shares
from autotune.lab.report.screening import Screening, group
from autotune.lab.report.style import STYLE
from autotune.lab.report.winner_table import comparison, roofline_figures, winners_section
from autotune.search_spaces.flash_attention.operation import OPERATION
from autotune.search_spaces.flash_attention.triton import IMPLEMENTATION
from autotune.search_spaces.paged_decode.triton import IMPLEMENTATION as DECODE
from autotune.shape import PagedShape
from autotune.sheets import Sheet, text
from autotune.space import Config
from autotune.trial import Outcome, Stage, Status, Trial
from tests import sample

SHAPE = sample.shape(1024)
ROW = re.compile(r"<g class=\"([^\"]*)\"><title>([^<]*)</title>.*?<text[^>]*>([^<]*)</text></g>")


@pytest.fixture(scope="module")
def sweep() -> Screening:
    (problem,) = group(sample.sweep(SHAPE))
    return problem


def test_markup_is_escaped_unless_it_is_markup() -> None:
    assert element("td", "<b>", element("b", '"'), class_='"') == '<td class="&quot;">&lt;b&gt;<b>&quot;</b></td>'
    assert element("rect", x=1.25, open=True, missing=None) == '<rect x="1.2" open/>'
    assert join("&", None, 3) == "&amp;3"
    hostile = table(Sheet("<i>", (text("<i>"),), (("<i>",), (element("b", "<i>"),))))
    assert "<b>&lt;i&gt;</b>" in hostile
    assert "<i>" not in hostile


def test_a_heat_map_has_a_cell_for_each_pair_that_was_tried(sweep: Screening) -> None:
    layout = choose_layout(sweep, {})
    assert layout is not None
    assert [parameter.name for parameter in layout if parameter] == ["BLOCK_Q", "BLOCK_K", "num_warps", "num_stages"]
    cells = [match.groups() for match in ROW.finditer(heat_maps(sweep, layout))]
    names = ("BLOCK_Q", "BLOCK_K", "num_warps", "num_stages")
    tried = {tuple(trial.config[name] for name in names) for trial in sweep.trials}
    assert len(cells) == len(tried)
    assert sum("is-best" in kind for kind, _, _ in cells) == 1
    (best,) = [text for kind, _, text in cells if "is-best" in kind]
    assert best == "1.00"
    assert sum("is-default" in kind for kind, _, _ in cells) == 1


def test_a_cell_is_the_best_over_all_other_parameters(sweep: Screening) -> None:
    """In the sample a step of a parameter costs 12 us over the 200 us of the fastest, so one step is 1.06."""
    layout = choose_layout(sweep, {})
    assert layout is not None
    drawn = heat_maps(sweep, layout)
    fast = {(title, text) for _, title, text in ROW.findall(drawn)}
    assert ("BLOCK_Q=128 BLOCK_K=128: 200 us", "1.00") in fast
    assert ("BLOCK_Q=128 BLOCK_K=64: 212 us", "1.06") in fast
    assert ("BLOCK_Q=128 BLOCK_K=64: 224 us", "1.12") in fast  # with another number of stages


def test_a_cell_where_all_failed_says_how() -> None:
    rows = sample.sweep(SHAPE)
    at = ("BLOCK_Q", 64), ("BLOCK_K", 64)
    failed = [
        replace(trial, outcome=Outcome(candidate=trial.candidate, status=Status.OUT_OF_RESOURCES, message="too much"))
        if all(trial.config[name] == value for name, value in at) and trial.stage is Stage.SCREEN
        else trial
        for trial in rows
    ]
    (problem,) = group(failed)
    layout = choose_layout(problem, {})
    assert layout is not None
    cells = [match.groups() for match in ROW.finditer(heat_maps(problem, layout))]
    assert any(title == "BLOCK_Q=64 BLOCK_K=64: 2 out_of_resources" for _, title, _ in cells)
    assert all("failed" in kind for kind, title, _ in cells if title.startswith("BLOCK_Q=64 BLOCK_K=64:"))


def decode_problem() -> Screening:
    """Two schedules, of which one has splits: the time depends on the splits and on BLOCK_K."""
    shape = PagedShape(batch=4, heads=32, kv_heads=8, max_context=8192, head_dim=128, page_size=16, dtype="bfloat16")
    example = DECODE.space.default(shape, NVIDIA_H200)
    rows = []
    for number, (splits, keys, warps) in enumerate(product((None, 4, 8, 16), (32, 64, 128), (2, 4))):
        schedule = "flat" if splits is None else "split"
        config = Config(
            {
                **example,
                "schedule": schedule,
                "NUM_SPLITS": splits,
                "PROGRAMS_PER_SM": 1 if splits is None else None,
                "BLOCK_K": keys,
                "num_warps": warps,
            }
        )
        trial = sample.trial(chosen=config, operation=DECODE.operation, number=number, timing=sample.timing(100 + keys))
        rows.append(replace(trial, shape=shape, stage=Stage.SCREEN, race_id=""))
    (problem,) = group(rows)
    return problem


def test_the_axes_of_another_operation_are_its_most_important_ordered_parameters() -> None:
    problem = decode_problem()
    layout = choose_layout(problem, {"schedule": 0.6, "NUM_SPLITS": 0.3, "BLOCK_K": 0.09, "num_warps": 0.01})
    assert layout is not None
    assert [p and p.name for p in layout] == ["BLOCK_K", "NUM_SPLITS", "schedule", "num_warps"]
    drawn = heat_maps(problem, layout)
    assert "BLOCK_K=32 NUM_SPLITS=None: 132 us" in drawn
    assert ">schedule split<" in drawn
    other = choose_layout(problem, {"num_warps": 0.7, "BLOCK_K": 0.2})
    assert other is not None
    assert (other.rows.name, other.columns.name) == ("BLOCK_K", "num_warps")


def test_one_parameter_makes_no_map() -> None:
    rows = [
        trial for trial in decode_problem().trials if (trial.config["NUM_SPLITS"], trial.config["num_warps"]) == (4, 2)
    ]
    (problem,) = group(rows)
    assert choose_layout(problem, {}) is None


def test_failures_are_shares_of_each_value() -> None:
    """Of four configs with BLOCK_Q 64 one fails, of four with 128 three do, in two ways."""
    configs = [sample.config(BLOCK_Q=q, num_stages=stages) for q in (64, 128) for stages in (1, 2, 3, 4)]
    statuses = [Status.OK, Status.OK, Status.HANG, Status.SLOW, Status.OK, Status.HANG, Status.HANG, Status.NAN_RESULT]
    rows = [
        sample.trial(chosen=c, status=s, message="no answer after 5 s") for c, s in zip(configs, statuses, strict=True)
    ]
    drawn = failures_section(IMPLEMENTATION.space.parameters, rows)
    assert "4 of 8 screened configs failed (50 %)." in drawn
    assert "hang (3)" in drawn
    assert "nan_result (1)" in drawn
    block_q = drawn[drawn.index(">BLOCK_Q<") : drawn.index(">num_stages<")]
    assert "<dt>64</dt>" in block_q
    assert "25 % of 4" in block_q
    assert "75 % of 4" in block_q
    assert re.findall(r'width="([\d.]+)"[^>]*class="status-(\d)"', block_q) == [
        ("250", "0"),
        ("500", "0"),
        ("250", "1"),
    ]
    assert ">loads<" not in drawn  # took one value


def test_no_failure_is_said_to_be_none() -> None:
    assert "None of 1 screened config failed." in failures_section(IMPLEMENTATION.space.parameters, [sample.trial()])


def test_what_failed_in_a_race_alone_is_told() -> None:
    raced = sample.trial(status=Status.HANG, message="no answer")
    drawn = failures_section(IMPLEMENTATION.space.parameters, [sample.trial()], [raced])
    assert "None of 1 screened config failed; 1 trial of races did." in drawn
    assert "no answer" in drawn


def test_messages_that_differ_in_numbers_are_one() -> None:
    rows = [
        sample.trial(chosen=sample.config(num_stages=n), status=Status.OUT_OF_RESOURCES, message=message)
        for n, message in ((1, "700 bytes"), (2, "900 bytes"), (3, "900 bytes"), (4, "another " + "x" * 1000))
    ]
    drawn = failures_section(IMPLEMENTATION.space.parameters, rows)
    assert "<code>900 bytes</code> and 1 variant of it" in drawn
    assert "700 bytes" not in drawn
    assert len(drawn) < 6000


def test_a_roofline_says_how_near_its_winners_come(sweep: Screening) -> None:
    """The sample's problem has 2 x 2 x 128 FLOPs for each of 16 x 16 x 1024 x 1025 / 2 pairs, in 200 us."""
    winner = sample.trial(SHAPE)
    flops = 2 * 2 * 128 * 16 * 16 * 1024 * 1025 / 2
    tflops, intensity = flops / 200e-6 / 1e12, flops / (4 * 16 * 1024 * 16 * 128 * 2)
    (told,) = roofline_figures(OPERATION, NVIDIA_H200, [sweep], [winner])
    share = tflops / min(989.5, intensity * 4.8)
    assert f"The winner reaches {100 * share:.0f} % of the roof above; arithmetic is the limit." in told
    assert "nominal" in told
    assert "989.5 TFLOP/s dense in bfloat16, 4800 GB/s" in told
    assert told.count("<circle") == 1
    unknown = replace(NVIDIA_H200, name="Voodoo 2")
    (told,) = roofline_figures(OPERATION, unknown, [sweep], [winner])
    assert "no ceilings are known of Voodoo 2 in bfloat16" in told
    assert "line-roof" not in told
    assert roofline_figures(OPERATION, NVIDIA_H200, [], []) == []


def test_each_dtype_has_a_roofline_under_its_own_roof(sweep: Screening) -> None:
    """Causal, 512 long and 64 wide, fp32 has 64.1 FLOPs a byte: memory limits 16 bits there, arithmetic fp32.

    4 x 64 FLOPs for each of 4 x 32 x 512 x 513 / 2 pairs are 4.30 GFLOP; in 500 us that is 8.61 TFLOP/s of 164.9.
    """
    single = sample.trial(sample.shape(512, batch=4, heads=32, head_dim=64, dtype="float32"), timing=sample.timing(500))
    wide, narrow = roofline_figures(OPERATION, NVIDIA_H200, [sweep], [sample.trial(SHAPE), single])
    assert "Roofline, bfloat16" in wide
    assert wide.count("<circle") == narrow.count("<circle") == 1
    assert "Roofline, float32" in narrow
    assert "164.9 TFLOP/s dense in float32, 4800 GB/s" in narrow
    assert "1 winner at 64 FLOPs a byte. The winner reaches 5.2 % of the roof above; arithmetic is the limit." in narrow
    assert ": 8.61 TFLOP/s, 500 us</title>" in narrow


def test_winners_that_memory_limits_are_told_in_bytes_by_their_device_and_dtype() -> None:
    shape = PagedShape(batch=4, heads=32, kv_heads=8, max_context=8192, head_dim=128, page_size=16)
    won = sample.trial(shape, tflops=16.3, gbps=4077.8)
    unknown = replace(won, device=replace(NVIDIA_H200, name="Voodoo 2"))
    dense = sample.trial(sample.shape(512, dtype="float32"), tflops=8.21, gbps=128.0)
    assert "Speed in GB/s" in comparison([won])
    assert "Speed in TFLOP/s" in comparison([unknown])
    assert "16.3, 200 us" in comparison([unknown])
    assert "Speed in TFLOP/s" in comparison([dense])


def test_bars_are_as_long_as_the_speeds_are() -> None:
    """The fastest of 200, 240 and 210 us has the longest bar, of a thousand units."""
    drawn = comparison([sample.trial()])
    widths = re.findall(r'width="([\d.]+)"[^>]*class="(bar-\w+)"', drawn[drawn.index("<dl") :])
    assert widths == [("1000", "bar-tuned"), ("833.3", "bar-default"), ("952.4", "bar-baseline")]
    assert "344, 200 us" in drawn
    unrated = comparison([sample.trial(tflops=None, gbps=None)])
    assert "share of the fastest" in unrated
    assert ">833.3" not in unrated
    assert comparison([sample.trial(default_timing=None, baseline_timing=None, baseline="")]) == ""


def test_shares_are_averaged_over_problems_and_evaluators() -> None:
    first, second = {"fANOVA": {"a": 0.8, "b": 0.2}}, {"fANOVA": {"a": 0.4, "b": 0.6}, "PED-ANOVA": {"b": 1.0}}
    means = mean_shares([first, second])  # type: ignore[list-item]
    assert means["fANOVA"] == pytest.approx({"a": 0.6, "b": 0.4})
    assert means["PED-ANOVA"] == {"b": 1.0}
    assert combined(means) == pytest.approx({"b": 0.7, "a": 0.3})


def test_a_long_table_scrolls_and_says_so() -> None:
    whole, long = (table(Sheet("Rows", (text("a"),), tuple((str(n),) for n in range(rows)))) for rows in (60, 61))
    assert 'class="scroll"' in whole
    assert "scroll</small>" not in whole
    assert 'class="scroll long"' in long
    assert "61 rows, scroll" in long
    assert [rule for rule in re.findall(r"([^{}]+)\{[^{}]*max-height:\d", STYLE) if "scroll" in rule] == [
        "\n.scroll.long"
    ]


def test_time_and_gain_follow_the_problem() -> None:
    head = re.findall(r"<th [^>]*>(.*?)</th>", winners_section([sample.trial()], {}))
    assert head == ["problem", "time", "against default", "against baseline", "TFLOP/s", "winner", "from"]
    row = [
        re.sub(r"<[^>]+>", " ", cell)
        for cell in re.findall(r"<td[^>]*>(.*?)</td>", winners_section([sample.trial()], {}))
    ]
    assert [cell.split()[0] for cell in row] == ["batch", "200.0", "1.20x", "1.05x", "344", "triton", "2026-11-21"]


def test_lines_leave_out_what_is_not_finite() -> None:
    chart = Chart(log_axis("x", [1.0, 100.0]), regret_axis("y", [0.0, 1.0]))
    drawn = chart.line([1.0, 10.0, 100.0], [math.inf, 1.0, 0.0], "line", stepped=True)
    assert drawn.count("L") == 2  # one corner between the two values
    assert chart.line([1.0], [math.inf], "line") == ""
    assert chart.dots([], "dots") == ""
    bars = bar_rows([Bar("a", [("k", 0.25), ("l", 0.5)], "text")])
    assert re.findall(r'x="([\d.]+)" y="0" width="([\d.]+)"', bars) == [("0", "250"), ("250", "500")]


def test_a_trial_of_a_race_is_no_part_of_a_map() -> None:
    rows: list[Trial] = sample.sweep(SHAPE)
    (problem,) = group(rows)
    assert len(problem.trials) == sum(trial.stage is Stage.SCREEN for trial in rows)
