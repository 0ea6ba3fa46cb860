"""The default of flash attention in Gluon for Hopper: what recordings rank first, and elsewhere a rule."""

from autotune.device import Device
from autotune.errors import InvalidShapeError
from autotune.search_spaces.flash_attention import hopper_ranking
from autotune.search_spaces.flash_attention.gluon_hopper_bounds import reject, supports
from autotune.search_spaces.flash_attention.hopper_features import GLUON
from autotune.search_spaces.flash_attention.usual_schedule import usual_schedule
from autotune.shape import AttentionShape
from autotune.space import Config


def default(shape: AttentionShape, device: Device) -> Config:
    """Return the best candidate by networks that know recordings, and where they rank nothing the usual schedule.

    See ``hopper_ranking``.
    """
    if (problem := supports(shape, device)) is not None:
        raise InvalidShapeError(problem)
    return hopper_ranking.first_valid(GLUON, shape, device, reject) or usual_schedule(shape, device)


def estimate(config: Config, shape: AttentionShape, device: Device) -> float | None:
    """Return the time of a candidate over that of another one of the shape; None of what networks do not rank."""
    return hopper_ranking.estimate(GLUON, config, shape, device) if supports(shape, device) is None else None
