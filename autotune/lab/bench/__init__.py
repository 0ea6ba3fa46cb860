"""The comparison of the served kernel with every other system: one interleaved race on the same inputs."""

from autotune.lab.bench.against import ALL, choose_names
from autotune.lab.bench.comparison import DEFAULT, OURS, Comparison, Entry
from autotune.lab.bench.on_cpu import compare_on_cpu, why_not_here
from autotune.lab.bench.on_gpu import compare_on_gpu

__all__ = [
    "ALL",
    "DEFAULT",
    "OURS",
    "Comparison",
    "Entry",
    "choose_names",
    "compare_on_cpu",
    "compare_on_gpu",
    "why_not_here",
]
