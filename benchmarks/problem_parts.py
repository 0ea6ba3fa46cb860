"""Parts of a list of problems, for several GPUs or several runs."""

import argparse
import re
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def parse_part(text: str) -> tuple[int, int]:
    """Parse ``2/4``, the second part of four; raise ArgumentTypeError for another form, or if there is no such part."""
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; expected a part and their number, such as 2/4")
    return int(found[1]), int(found[2])


def cut(problems: Sequence[T], part: tuple[int, int]) -> list[T]:
    """Return one of the parts, as equal as can be; neighbours stay together and learn from each other."""
    number, count = part
    return list(problems[len(problems) * (number - 1) // count : len(problems) * number // count])


def deal(problems: Sequence[T], part: tuple[int, int]) -> list[T]:
    """Return every N-th problem: each part has its share of any beginning of the list."""
    number, count = part
    return list(problems[number - 1 :: count])
