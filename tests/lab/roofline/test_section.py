"""The section of a measured roofline: what was counted beside what was predicted, and why something is absent."""

import copy
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.lab.report.document import html_report
from autotune.lab.roofline import section
from autotune.lab.roofline.saved import MeasuredRoofline, read_roofline
from autotune.lab.roofline.section import measured_section
from tests import sample
from tests.lab.report.test_html import HOSTILE, NOW, Page
from tests.lab.roofline.roofline_sample import MIB, saved_roofline


def read(folder: Path, data: dict[str, Any]) -> MeasuredRoofline:
    path = folder / "roofline.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return read_roofline(path)


def rows(text: str, caption: str) -> list[list[str]]:
    """The rows of the table of that caption as the text of their cells, parts of a cell apart by a space."""
    (found,) = re.findall(rf"<caption>{caption}.*?<tbody>(.*?)</tbody>", text)
    return [
        [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", found)
    ]


def test_predicted_bytes_stand_beside_those_that_ncu_counted(tmp_path: Path) -> None:
    """Of naive attention at 1024 with 30 sequences: 2280.0 + 1926.0 MiB against 2280.6 + 1984.0, as ncu's run said."""
    text = measured_section([read(tmp_path, saved_roofline())])
    table = rows(text, "Bytes of the memory")
    assert [row[1] for row in table] == ["1024"] * 5 + ["4096"] * 5
    assert table[3] == [
        *("naive, all three", "1024", "480", "258", "4,206.0 MiB (2,280.0 + 1,926.0)"),
        *("4,264.6 MiB (2,280.6 + 1,984.0)", "-1.4 %", "57.6", "61 %", "59 %"),
    ]
    assert table[9][:7] == [
        *("flash_attention_forward", "4096", "128", "1100", "497.0 MiB (384.0 + 113.0)"),
        *("504.2 MiB (384.0 + 120.1)", "-1.4 %"),
    ]
    words = Page(text).text
    assert (
        "within 15 % at every length; naive -1.4 % at 1,024 and -0.4 % at 4,096; "
        "fused -1.5 % at 1,024 and -1.4 % at 4,096." in words
    )


def test_a_prediction_that_is_further_off_is_marked(tmp_path: Path) -> None:
    """The fused kernel at 4096 made to read 100 MiB more of 497: 597 against 504.2 is 18 % too much."""
    data = saved_roofline()
    data["ncu"][9]["predicted"]["read"] += 100 * MIB
    text = measured_section([read(tmp_path, data)])
    assert "further than 15 % off in 1 case; naive" in text
    assert re.findall(r'class="down"><strong>(.*?)</strong>', text) == ["+18.4 %"]


def test_every_kernel_that_has_a_time_stands_under_the_roof(tmp_path: Path) -> None:
    """cuDNN at 1024: 137.4 GFLOP in 227.4 us are 604.4 TFLOP/s, 78 % of 772.7; naive: 56.9 FLOP/B x 4322.6 GB/s."""
    text = measured_section([read(tmp_path, saved_roofline())])
    table = rows(text, "Under the roof")
    assert len(table) == 9
    assert table[4] == [
        *("sdpa cudnn", "1024", "256", "137", "256.0 MiB", "512.0", "227.4 us (226.9-227.9)", "604 TFLOP/s"),
        *("1180 GB/s", "compute", "773 TFLOP/s", "78 %"),
    ]
    assert table[0][7:] == ["158 TFLOP/s", "2784 GB/s", "memory", "246 TFLOP/s", "64 %"]
    circles = re.findall(r"<circle[^>]*class=\"([^\"]*)\"><title>(.*?)</title>", text)
    assert len(circles) == 9
    assert ("dot-tuned", "autotune at 4096: 510 TFLOP/s") in circles
    assert ("dot-baseline", "sdpa cudnn at 4096: 659 TFLOP/s") in circles
    assert ("dot-default", "softmax_rows at 1024: 4.1 TFLOP/s") in circles
    assert "measured on 2026-11-21 22:26 UTC with torch 2.11.0, triton 3.6.0, cuda 13.0: 4,323 GB/s" in text
    assert "naive at 1024: memory-bound: 56.9 FLOP/B is left of the ridge at 178.8" in text


def test_what_was_not_counted_has_a_dash_and_the_reason(tmp_path: Path) -> None:
    """Of 4096 alone: predicted for the batch that was timed. Q, K, V and output of 4 x 16 heads are 64 MiB each."""
    data = saved_roofline()
    data["ncu"] = data["ncu"][:5]
    data["failures"] = ["batch 4, 16 heads of 128, seq 4096, bfloat16, full: Nsight Compute did not end: timed out"]
    text = measured_section([read(tmp_path, data)])
    naive, fused = rows(text, "Bytes of the memory")[5:]
    dash = section.DASH
    assert naive[:4] == ["naive, all three", "4096", "64", "550"]
    assert fused[:2] == ["flash_attention_forward", "4096"]
    assert fused[4] == "241.0 MiB (192.0 + 49.0)"  # 60 / 256 are still in the L2
    reason = f"{dash} Nsight Compute did not end: timed out"
    assert naive[5:] == fused[5:] == [reason, "", "", "", ""]
    assert "within 15 % at every length; naive -1.4 % at 1,024; fused -1.5 % at 1,024." in text


def test_a_run_without_ncu_says_what_counts(tmp_path: Path) -> None:
    data = saved_roofline()
    del data["ncu"]
    table = rows(measured_section([read(tmp_path, data)]), "Bytes of the memory")
    assert {row[5] for row in table} == {f"{section.DASH} not asked for: {section.COUNTER}"}
    assert "Predicted against counted" not in measured_section([read(tmp_path, data)])


def test_a_processor_counts_nothing_and_has_smaller_units(tmp_path: Path) -> None:
    data = saved_roofline()
    data["ceilings"]["machine"] = {"kind": "cpu", "name": "a CPU", "cache_bytes": 32 * MIB, "units": 8}
    data["ceilings"]["compute"] = [{"name": "product", "value": 0.5}]
    for point in data["points"]:
        point["timing"] = None
        point["reason"] = "runs on a GPU only"
    data["points"][0]["timing"] = {"median_us": 1e6, "low_us": 1e6, "high_us": 1e6, "samples": 3}
    text = measured_section([read(tmp_path, data)])
    assert "a CPU, 8 threads, 32 MiB of last-level cache, bfloat16" in text
    assert rows(text, "Under the roof")[0][7] == "137 GFLOP/s"
    assert "not run: sdpa cudnn: runs on a GPU only" in text
    assert "Nsight Compute counts on a GPU" in text
    assert "Bytes of the memory behind" not in text


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_page_has_a_section_where_there_are_rooflines(tmp_path: Path, count: int) -> None:
    measured = read(tmp_path, saved_roofline())
    text = html_report([sample.trial()], source="a test", made_at=NOW, rooflines=[measured] * count)
    page = Page(text)
    assert text.count("Under the roof, ") == 2 * count  # the caption, and what is read aloud
    assert ("#roofline" in {link["href"] for link in page.attributes("a")}) is bool(count)
    assert ("roofline" in {attributes.get("id") for _, attributes in page.tags}) is bool(count)
    assert text.count("<figure") == text.count("<figcaption")
    assert page.attributes("script") == page.attributes("img") == []


def test_points_are_named_where_there_is_room_with_their_length_where_there_are_several(tmp_path: Path) -> None:
    def named(data: dict[str, Any]) -> list[str]:
        return re.findall(r'<text[^>]*class="tick">(.*?)</text>', measured_section([read(tmp_path, data)]))

    data = saved_roofline()
    assert {"naive 1024", "naive 4096", "sdpa cudnn 1024", "autotune 1024"} <= set(named(data))
    data["points"] = [point for point in data["points"] if point["shape"]["seq_q"] == 1024]
    assert named(data) == [
        *("naive", "attention_scores", "softmax_rows", "weighted_sum", "sdpa cudnn", "autotune"),
    ]


def test_a_section_is_small(tmp_path: Path) -> None:
    assert len(measured_section([read(tmp_path, saved_roofline())]).encode()) < 40_000


def test_what_stands_in_a_document_is_text(tmp_path: Path) -> None:
    data = saved_roofline()
    data["ceilings"]["machine"]["name"] = data["points"][0]["name"] = data["ncu"][0]["kernel"] = HOSTILE
    data["toolchain"]["torch"] = HOSTILE
    unmeasured = copy.deepcopy(data["points"][1])
    data["points"].append({**unmeasured, "timing": None, "reason": HOSTILE})
    data["ceilings"]["dtype"] = HOSTILE
    text = html_report([sample.trial()], source="a test", made_at=NOW, rooflines=[read(tmp_path, data)])
    assert {"script", "img"}.isdisjoint(tag for tag, _ in Page(text).tags)
    assert text.count(html.escape(HOSTILE)) >= 6
