"""The figure, and the names that are refused before anything is drawn."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autotune.errors import UsageError
from autotune.lab.drawing.figure_file import check_figure
from autotune.lab.machine.ceilings import Ceilings, Rate
from autotune.lab.machine.processor import Processor
from autotune.lab.roofline.placement import RooflinePoint
from autotune.lab.roofline.section import draw_roofline
from autotune.shape import AttentionShape
from autotune.trial import Timing

PROCESSOR = Processor("cuda", "NVIDIA H200", 60 * 2**20, 132)
CEILINGS = Ceilings(PROCESSOR, "bfloat16", (Rate("copy", 4300.0),), (Rate("product", 790.0),))


def point(name: str, seq: int, microseconds: float | None) -> RooflinePoint:
    shape = AttentionShape(batch=1, heads=16, seq_q=seq, head_dim=128)
    timing = None if microseconds is None else Timing(microseconds, microseconds, microseconds, 3)
    return RooflinePoint(name, shape, 10**9 * seq, 10**7, timing)


POINTS = [
    point("autotune", 1024, 2000.0),
    point("naive", 1024, 9000.0),
    point("autotune", 4096, 7000.0),
    point("cudnn", 1, None),
]


def texts(path: Path) -> set[str]:
    return {"".join(node.itertext()).strip() for node in ElementTree.parse(path).iter() if node.tag.endswith("}text")}


def test_an_svg_names_ceilings_ridge_kernels_and_lengths(tmp_path: Path) -> None:
    draw_roofline(POINTS, CEILINGS, tmp_path / "roofline.svg")
    shown = texts(tmp_path / "roofline.svg")
    assert {"4300 GB/s", "790 TFLOP/s", "ridge 183.7", "TFLOP/s", "Roofline of NVIDIA H200"} <= shown
    assert "132 SMs, 60 MiB of L2, bfloat16" in shown
    assert {"100", "200", "500", "100k", "1k", "10k"} <= shown
    assert {"autotune, S = 1024", "naive, S = 1024", "autotune, S = 4096"} <= shown
    assert not any("cudnn" in text for text in shown)


def test_two_drawings_are_the_same_file(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw_roofline(POINTS, CEILINGS, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_slow_device_is_drawn_in_gflops(tmp_path: Path) -> None:
    slow = Ceilings(PROCESSOR, "float32", (Rate("copy", 30.0),), (Rate("product", 0.1),))
    draw_roofline([], slow, tmp_path / "slow.svg")
    assert {"100 GFLOP/s", "GFLOP/s", "30 GB/s"} <= texts(tmp_path / "slow.svg")


def test_a_cpus_threads_are_named_and_its_ticks_are_plain_numbers(tmp_path: Path) -> None:
    """From 25 to 100 GFLOP/s, not 3 x 10^1 and the like."""
    cpu = Processor("cpu", "a CPU", 32 * 2**20, 8)
    ceilings = Ceilings(cpu, "float32", (Rate("copy", 30.0),), (Rate("product", 0.1),))
    draw_roofline([point("naive", 1024, 2e7)], ceilings, tmp_path / "cpu.svg")
    shown = texts(tmp_path / "cpu.svg")
    assert {
        "Roofline of a CPU",
        "8 threads, 32 MiB of last-level cache, float32",
        "10",
        "60",
        "80",
        "100",
        "120",
    } <= shown
    assert not any("10^" in text or "times" in text or "\N{MULTIPLICATION SIGN}" in text for text in shown)


@pytest.mark.parametrize("name", ["roofline.pdf", "roofline.png", "roofline"])
def test_another_format_is_refused_with_the_name_that_works(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"figures are drawn as SVG; expected 'roofline\.svg'"):
        draw_roofline(POINTS, CEILINGS, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_absent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lies in no folder"):
        check_figure(tmp_path / "none" / "roofline.svg")


def test_dots_lie_under_the_roof_where_their_numbers_are(tmp_path: Path) -> None:
    """Each decade is as wide as another: naive at a ninth of 1024's intensity would lie log(9) to the left."""
    draw_roofline(POINTS, CEILINGS, tmp_path / "roofline.svg")
    places = [
        tuple(map(float, found.groups()))
        for node in ElementTree.parse(tmp_path / "roofline.svg").iter()
        if node.get("fill") and (found := re.match(r"translate\(([\d.]+) ([\d.]+)\)", node.get("transform", "")))
    ]
    first, slow, far = places[:3]  # the legend follows
    assert first[0] == slow[0]
    assert slow[1] > first[1]  # 9 ms are slower than 2 ms
    assert far[0] > first[0]
    assert len(places) == 3 + 3
