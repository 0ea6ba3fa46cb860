"""Grids of tasks: what a fleet is to tune, planned, run on one host or many, and looked at while it runs."""

from autotune.grid.attempt import Attempt, AttemptEnd, State
from autotune.grid.grid_task import GridTask
from autotune.grid.place import GridPlace

__all__ = ["Attempt", "AttemptEnd", "GridPlace", "GridTask", "State"]
