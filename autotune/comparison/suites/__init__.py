"""Suites: what others measured, again, each with one command; importing one loads torch, this package does not."""

from autotune.comparison.suites.machine import CpuMachine, GpuMachine, Machine
from autotune.comparison.suites.names import SUITES, find_suite
from autotune.comparison.suites.suite import Column, Suite, SuiteResult, Table

__all__ = ["SUITES", "Column", "CpuMachine", "GpuMachine", "Machine", "Suite", "SuiteResult", "Table", "find_suite"]
