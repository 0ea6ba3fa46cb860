"""Published comparisons, measured again, each with one command; importing one loads torch, this package does not."""

from autotune.lab.bench.machines import CpuMachine, GpuMachine, Machine
from autotune.lab.suites.suite import SUITES, Suite, SuiteResult, SuiteSheet, find_suite

__all__ = ["SUITES", "CpuMachine", "GpuMachine", "Machine", "Suite", "SuiteResult", "SuiteSheet", "find_suite"]
