"""Measured numbers as text: times, rates, sizes, ratios and counts, each by one rule."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from autotune.trial import Timing


class TimeUnit(NamedTuple):
    """A unit of time, its length in microseconds, and the digits that follow the point."""

    name: str
    microseconds: float
    digits: int

    def number(self, microseconds: float) -> str:
        """Format a time in this unit, without the unit."""
        return f"{microseconds / self.microseconds:.{self.digits}f}"


def time_unit(microseconds: float) -> TimeUnit:
    if microseconds >= 1e6:
        return TimeUnit("s", 1e6, 3)
    if microseconds >= 1e3:
        return TimeUnit("ms", 1e3, 3)
    return TimeUnit("us", 1.0, 1 if microseconds >= 10.0 else 3)


def time_text(microseconds: float) -> str:
    """Format a time in the unit that reads best.

    Example:
        >>> time_text(127936.5), time_text(84.2), time_text(6.247)
        ('127.936 ms', '84.2 us', '6.247 us')
    """
    unit = time_unit(microseconds)
    return f"{unit.number(microseconds)} {unit.name}"


def timing_text(timing: Timing) -> str:
    """Format a median with its interval, all three in the unit of the median.

    Example:
        >>> timing_text(Timing(84.2, 83.9, 84.6, 15))
        '84.2 us (83.9-84.6)'
    """
    unit = time_unit(timing.median_us)
    return f"{time_text(timing.median_us)} ({unit.number(timing.low_us)}-{unit.number(timing.high_us)})"


def short_time_text(microseconds: float) -> str:
    """Format a time in three digits, for figures and cells that have no room for more.

    Example:
        >>> short_time_text(127936.5), short_time_text(84.24)
        ('128 ms', '84.2 us')
    """
    unit = time_unit(microseconds)
    return f"{three_digits(microseconds / unit.microseconds)} {unit.name}"


def duration_text(seconds: float) -> str:
    """Format a wall time in the unit that reads best.

    Example:
        >>> duration_text(2.34), duration_text(61.0), duration_text(600.0)
        ('2.3 s', '61 s', '10 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def three_digits(value: float) -> str:
    """Format a number of at least three digits, without an exponent.

    Example:
        >>> three_digits(4078.3), three_digits(24.71), three_digits(0.0312)
        ('4078', '24.7', '0.0312')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # Rounded first: 9.996 has its point where 10.0 has it.
    magnitude = math.floor(math.log10(abs(float(f"{value:.3g}"))))
    return f"{value:.{max(0, 2 - magnitude)}f}"


def tflops_text(tflops: float) -> str:
    """Format a rate of arithmetic.

    Example:
        >>> tflops_text(254.2), tflops_text(0.0471)
        ('254 TFLOP/s', '47.1 GFLOP/s')
    """
    return f"{three_digits(tflops)} TFLOP/s" if tflops >= 1.0 else f"{three_digits(1000 * tflops)} GFLOP/s"


def gbps_text(gbps: float) -> str:
    return f"{three_digits(gbps)} GB/s"


def mib_text(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"


def bytes_text(count: float) -> str:
    """Format bytes in the unit that reads best.

    Example:
        >>> bytes_text(3 * 2**19), bytes_text(-2048), bytes_text(16)
        ('1.5 MiB', '-2.0 KiB', '16 B')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:.0f} B"


def ratio_text(value: float) -> str:
    return f"{value:.2f}x"


def percent_text(share: float) -> str:
    """Format a share in percent, with a decimal where it is small.

    Example:
        >>> percent_text(0.5), percent_text(0.0123)
        ('50 %', '1.2 %')
    """
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def count_text(count: int, noun: str) -> str:
    """Format a count with its noun, singular or plural.

    Example:
        >>> count_text(1, "trial"), count_text(2500, "trial"), count_text(2, "batch")
        ('1 trial', '2,500 trials', '2 batches')
    """
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def few_text(items: Sequence[str], separator: str = ", ", *, limit: int = 3) -> str:
    """List the first few of several, and count the others.

    Example:
        >>> few_text(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    others = len(items) - limit
    return separator.join(items[:limit]) + (f" and {others} more" if others > 0 else "")
