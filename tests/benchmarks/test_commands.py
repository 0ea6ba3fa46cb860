"""Messages of the benchmarks' commands where they cannot run, and about their arguments."""

import importlib
import sys

import pytest

from benchmarks import paged
from tests import sample


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ("compiled_model",),
            ("endurance",),
            ("every_gpu", "record"),
            ("example_kernels", "--results", "nowhere"),
            ("feature_costs",),
            ("fp8_forward",),
            ("host_time",),
            ("latent_decode",),
            ("many_gpus.__main__", "--results", "nowhere"),
            ("paged",),
            ("prefill",),
            ("record", "winners"),
            ("short_queries",),
            ("small_budgets",),
        ),
        ("stream_read",),
    ],
    ids=lambda found: found[0],
)
def test_without_a_gpu_a_benchmark_says_so_in_one_line(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample.hide_gpu(monkeypatch)
    monkeypatch.setattr(sys, "argv", list(arguments))
    with pytest.raises(SystemExit) as ended:  # a text: printed on standard error, with exit code 1
        importlib.import_module(f"benchmarks.{arguments[0]}").main()
    name = f"benchmarks.{arguments[0].removesuffix('.__main__')}"
    assert ended.value.code == f"{name}: this command measures, and no GPU is visible; run `autotune doctor`"


def test_the_parts_of_a_comparison_are_listed_and_another_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "uniform, ragged, one, pages, quantized, prefill, mixed"
    for argument, code, words in (
        ("--help", 0, f"PART {names} [default: all]"),
        ("one ", 2, f"'one ' is unknown; allowed: {names}"),
    ):
        monkeypatch.setattr(sys, "argv", ["paged", argument])
        with pytest.raises(SystemExit) as ended:
            paged.main()
        assert ended.value.code == code
        printed = capsys.readouterr()
        assert words in " ".join((printed.out + printed.err).split())
