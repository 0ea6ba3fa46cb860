"""The figure as PNG and as SVG, and what is refused before anything is drawn."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autotune.analysis.ceilings import Ceilings, Rate
from autotune.analysis.processor import Processor
from autotune.analysis.roofline import Point
from autotune.errors import MissingDependencyError, UsageError
from autotune.report.roofline_figure import check_figure, draw_roofline
from autotune.shape import AttentionShape
from autotune.trial import Timing

PROCESSOR = Processor("cuda", "NVIDIA H200", 60 * 2**20, 132)
CEILINGS = Ceilings(PROCESSOR, "bfloat16", (Rate("copy", 4300.0),), (Rate("product", 790.0),))


def point(name: str, seq: int, microseconds: float | None) -> Point:
    shape = AttentionShape(batch=1, heads=16, seq_q=seq, head_dim=128)
    timing = None if microseconds is None else Timing(microseconds, microseconds, microseconds, 3)
    return Point(name, shape, 10**9 * seq, 10**7, timing)


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
    assert {"200", "400", "600", "800", "1k", "10k"} <= shown
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
    """From 25 to 100 GFLOP/s, where matplotlib's own ticks would be 3 x 10^1 and the like."""
    cpu = Processor("cpu", "a CPU", 32 * 2**20, 8)
    ceilings = Ceilings(cpu, "float32", (Rate("copy", 30.0),), (Rate("product", 0.1),))
    draw_roofline([point("naive", 1024, 2e7)], ceilings, tmp_path / "cpu.svg")
    shown = texts(tmp_path / "cpu.svg")
    assert {"Roofline of a CPU", "8 threads, 32 MiB of last-level cache, float32", "40", "60", "80", "100"} <= shown
    assert not any("10^" in text or "times" in text or "\N{MULTIPLICATION SIGN}" in text for text in shown)


def test_a_png_is_one(tmp_path: Path) -> None:
    draw_roofline(POINTS, CEILINGS, tmp_path / "roofline.PNG")
    data = (tmp_path / "roofline.PNG").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(data[16:20]) > 1000  # pixels wide


def test_a_name_that_is_no_figures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        check_figure(tmp_path / "roofline.pdf")
    with pytest.raises(UsageError, match="lies in no folder"):
        check_figure(tmp_path / "none" / "roofline.png")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'attention-autotune\[report\]'"):
        draw_roofline(POINTS, CEILINGS, tmp_path / "roofline.png")
    assert not (tmp_path / "roofline.png").exists()
