"""Numbers that the commands take."""

import argparse

import pytest

from benchmarks.console import parse_count, parse_duration


def test_counts_are_whole_and_durations_above_zero() -> None:
    assert (parse_count("12"), parse_duration("0.5"), parse_duration("3")) == (12, 0.5, 3.0)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many", "\u0663"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not allowed; expected a number from 1 on"):
        parse_count(text)


@pytest.mark.parametrize("text", ["0", "-1", "", "soon", "nan", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not allowed; expected a number above 0"):
        parse_duration(text)
