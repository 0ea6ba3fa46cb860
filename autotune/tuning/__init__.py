"""Tuning as one call: ``tune(shapes)`` searches, keeps every trial, and returns the winners that are served from then.

It is the library behind ``autotune search`` and ``autotune sweep``. ``autotune.tune`` loads it, and Optuna with it.
"""

from autotune.registry import Workload
from autotune.search import Observer
from autotune.tuning.tuned import TunedShape, Tuning
from autotune.tuning.tuner import tune, why_unwritable
from autotune.tuning.workloads import find_answers, take_turns

__all__ = ["Observer", "TunedShape", "Tuning", "Workload", "find_answers", "take_turns", "tune", "why_unwritable"]
