"""What is compared: the served kernel beside every other system, on the same inputs, in one interleaved race."""

from autotune.comparison.entry import Comparison, Entry
from autotune.comparison.names import choose_names
from autotune.comparison.on_cpu import compare_on_cpu, why_not_here
from autotune.comparison.on_gpu import OURS, compare_on_gpu

__all__ = ["OURS", "Comparison", "Entry", "choose_names", "compare_on_cpu", "compare_on_gpu", "why_not_here"]
