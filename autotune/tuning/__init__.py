"""Tuning as one call: ``tune(shapes)`` searches, keeps every trial, and returns the winners that are served from then.

It is the library behind ``autotune search``, ``sweep`` and ``verify``. ``autotune.tune`` loads it, and Optuna with it.
"""

from autotune.search import Observer
from autotune.tuning.drawn_shapes import draw_shapes, is_drawn, is_measurable
from autotune.tuning.refusals import why_unwritable
from autotune.tuning.sparse import SparseShape, find_sparse
from autotune.tuning.tuned import TunedShape, Tuning
from autotune.tuning.tuner import tune
from autotune.tuning.verification import Verification, VerifiedShape, nearest_rank, verify
from autotune.tuning.workloads import find_answers, take_turns
from autotune.workload import Workload

__all__ = [
    "Observer",
    "SparseShape",
    "TunedShape",
    "Tuning",
    "Verification",
    "VerifiedShape",
    "Workload",
    "draw_shapes",
    "find_answers",
    "find_sparse",
    "is_drawn",
    "is_measurable",
    "nearest_rank",
    "take_turns",
    "tune",
    "verify",
    "why_unwritable",
]
