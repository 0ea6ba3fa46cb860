"""A measured roofline read back: whole, with nothing believed that is no number of its kind."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.lab.machine.ceilings import Ceilings, Rate, ceilings_data
from autotune.lab.machine.processor import Processor
from autotune.lab.roofline.placement import RooflinePoint, points_data
from autotune.lab.roofline.saved import MADE_BY, MeasuredRoofline, read_roofline
from autotune.shape import AttentionShape
from autotune.trial import Timing
from tests.lab.roofline.roofline_sample import saved_roofline

Spoil = Callable[[dict[str, Any]], object]


def read(folder: Path, data: object) -> MeasuredRoofline:
    path = folder / "roofline.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return read_roofline(path)


def test_what_was_measured_and_counted_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, saved_roofline())
    assert str(found.ceilings.processor) == "NVIDIA H200, 132 SMs, 60 MiB of L2"
    assert (found.ceilings.gbps, found.ceilings.tflops) == (4322.6, 772.7)
    assert found.points[0].shape == AttentionShape(batch=16, heads=16, seq_q=1024, head_dim=128)
    assert found.points[0].timing == Timing(867.7, 867.2, 868.2, 15)
    assert found.counted is not None
    deviations = {(item.kernel, item.shape.seq_q): round(100 * item.deviation, 1) for item in found.counted}
    assert len(deviations) == 10
    assert (deviations["naive", 1024], deviations["flash_attention_forward", 4096]) == (-1.4, -1.4)  # as printed then
    assert found.measured_at == datetime(2026, 11, 21, 22, 26, tzinfo=UTC)
    assert found.toolchain is not None
    assert found.toolchain.torch == "2.11.0"


def test_a_run_that_counted_nothing_and_an_early_document_are_read(tmp_path: Path) -> None:
    data = saved_roofline()
    for name in ("ncu", "failures", "measured_at", "toolchain"):
        del data[name]
    found = read(tmp_path, data)
    assert (found.counted, found.failures, found.measured_at, found.toolchain) == (None, (), None, None)
    assert read(tmp_path, {**data, "ncu": [], "failures": ["seq 1024: none"]}).counted == ()


def test_what_the_analysis_writes_is_what_is_read(tmp_path: Path) -> None:
    ceilings = Ceilings(Processor("cpu", "a CPU", 2**25, 8), "float32", (Rate("copy", 100.0),), (Rate("product", 1.0),))
    shape = AttentionShape(batch=1, heads=2, seq_q=64, head_dim=16, dtype="float32", causal=True)
    points = (
        RooflinePoint("eager", shape, 100, 10, Timing(2.0, 1.5, 2.5, 3)),
        RooflinePoint("naive", shape, 100, 20, None, "no GPU"),
    )
    data = {"ceilings": ceilings_data(ceilings), "points": points_data(points, ceilings)}
    found = read(tmp_path, data)
    assert (found.ceilings, found.points) == (ceilings, points)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON: Expecting value"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "has no object at the document"),
        ("{}", "has no 'ceilings' in the document"),
        ('{"machine": {}, "peaks": []}', "has no 'ceilings'"),
        ('{"works": [], "claims": []}', "was derived and not measured (--no-measure)"),
        ('{"ceilings": NaN}', "has NaN"),
        ("\udcff", "is no JSON"),
    ],
    ids=["empty", "cut", "deep", "a list", "nothing", "of memory", "derived", "no number", "no text"],
)
def test_another_file_is_refused_with_what_it_is(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as caught:
        read_roofline(path)
    message = str(caught.value)
    assert message.startswith(f"roofline='{path}' {words}")
    assert message.endswith(f"; expected what `{MADE_BY}` writes")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match=f"^roofline='{path}' cannot be read: "):
            read_roofline(path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda d: d["ceilings"]["machine"].update(kind="tpu"),
            "'tpu' at ceilings.machine.kind, allowed are cpu, cuda",
        ),
        (lambda d: d["ceilings"]["machine"].update(cache_bytes="60"), "'60' at ceilings.machine.cache_bytes, where a"),
        (lambda d: d["ceilings"].update(memory=[]), "no rates above 0 at ceilings.memory"),
        (lambda d: d["ceilings"]["compute"][0].update(value=0), "no rates above 0 at ceilings.compute"),
        (lambda d: d["ceilings"]["compute"][0].update(value=True), "True at ceilings.compute[0].value, where a number"),
        (
            lambda d: d["ceilings"]["compute"][0].update(value=1e30),
            "1e+30 at ceilings.compute[0].value, where",
        ),
        (lambda d: d["ceilings"].update(dtype=16), "16 at ceilings.dtype, where a text stands"),
        (lambda d: d["points"][2].pop("name"), "no 'name' in points[2]"),
        (lambda d: d["points"][2].update(bytes=0), "0 at points[2].bytes, where a whole number above 0"),
        (lambda d: d["points"][2].update(bytes=10**400), "0 at points[2].bytes, where a whole number above 0"),
        (lambda d: d["points"][2].update(flops=1.5), "1.5 at points[2].flops, where a whole number above 0"),
        (
            lambda d: d["points"][2]["timing"].update(median_us=0.0),
            "median within an interval above 0 at points[2].tim",
        ),
        (lambda d: d["points"][2]["timing"].update(samples=-1), "-1 at points[2].timing.samples"),
        (lambda d: d["points"][2]["shape"].update(heads=0), "attention at points[2].shape: heads=0"),
        (lambda d: d["points"][2]["shape"].update(page_size=16), "no shape of dense attention at points[2].shape"),
        (lambda d: d["points"][2]["shape"].pop("batch"), "no shape of dense attention at points[2].shape"),
        (lambda d: d["points"][2].update(shape=None), "no object at points[2].shape"),
        (lambda d: d.update(points={}), "no list at points"),
        (lambda d: d["ncu"][3]["counted"].update(read=0, write=0), "0 at ncu[3].counted, where a whole number above 0"),
        (lambda d: d["ncu"][3]["predicted"].update(write=-1), "-1 at ncu[3].predicted.write"),
        (lambda d: d["ncu"][3].pop("counted"), "no 'counted' in ncu[3]"),
        (lambda d: d.update(failures=[1]), "1 at failures[0], where a text stands"),
        (lambda d: d.update(measured_at="yesterday"), "no time at measured_at"),
        (lambda d: d.update(measured_at="2026-11-21T22:26:00"), "a time without its zone at measured_at"),
        (lambda d: d["toolchain"].update(torch=None), "None at toolchain.torch, where a text stands"),
    ],
)
def test_a_document_that_was_changed_is_refused_with_the_place(tmp_path: Path, spoil: Spoil, words: str) -> None:
    data = saved_roofline()
    spoil(data)
    with pytest.raises(UsageError) as caught:
        read(tmp_path, data)
    assert words in str(caught.value)
