"""Knowledge that grows while a grid is recorded: the configs to try first for a shape, and if a search pays beyond."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from autotune.device import Device
from autotune.dispatch import default_config
from autotune.errors import UsageError
from autotune.implementation import Implementation
from autotune.likeness import likeness
from autotune.shape import Shape
from autotune.space import Config, Space
from autotune.trial import Trial
from benchmarks.recorded_shapes import RecordedShape, read_recordings
from benchmarks.set_cover import cover

# Of twelve sweeps of dense attention, each left out in turn, the four to six members, defaults, hand-written configs
# and winners of other shapes held the best config; of two of paged decode one was 0.1 % off, and one of 6 us 24 %
# (NVIDIA H200, 2026-11-21 and 2026-11-22). The rest of these places go to neighbours of the one expected to win.
FIRST: Final = 12
MEMBERS: Final = 6  # of the class's portfolio, the most covering first
NEAREST: Final = 3  # recorded shapes whose winners are tried
# A search beyond is made where it gained more than this, in the mean, at the nearest shapes of the class that were
# searched, and where fewer than two were.
WORTH: Final = 0.03
ENOUGH: Final = 2


@dataclass
class Knowledge:
    """All that is recorded of one implementation on an architecture, and what searches gained beyond the first configs.

    ``recordings`` may be of any device of the architecture; a newer one of a shape replaces the older.
    """

    implementation: Implementation[Any]
    device: Device
    recordings: dict[tuple[Shape, Device], RecordedShape] = field(default_factory=dict)
    gains: list[tuple[Shape, float]] = field(default_factory=list)

    def learn(self, tables: Iterable[Sequence[Trial]]) -> None:
        """Add what tables record; of a shape that is known already the table counts that timed as many or more."""
        for each in read_recordings(self.implementation, tables):
            known = self.recordings.get((each.shape, each.device))
            if each.device.arch == self.device.arch and (known is None or each.timed >= known.timed):
                self.recordings[each.shape, each.device] = each

    def note_gain(self, shape: Shape, gain: float) -> None:
        """Note how much longer the best of the first configs took than the best that a search found, 0.02 for 2 %."""
        self.gains.append((shape, gain))

    def first(self, shape: Shape) -> list[Config]:
        """List valid configs to try first: what is served as default, the space's default, what people write by hand,
        the members of the class's portfolio, the winners of the nearest shapes, and neighbours of the likeliest.
        """
        space, device = self.implementation.space, self.device
        kin = self._kin(shape)
        members = [config for config in cover(self.implementation, kin) if config is not None][:MEMBERS]
        winners = [each.best for each in kin[:NEAREST]]
        if not kin:
            members = self._usual(shape)[:MEMBERS]
        served = default_config(self.implementation, shape, device)
        known = [served, space.default(shape, device), *space.heuristics(shape, device), *members, *winners]
        valid = [each for each in dict.fromkeys(known) if space.why_invalid(each, shape, device) is None]
        likely = [each for each in dict.fromkeys([*winners, *members, *valid]) if each in valid]
        found = dict.fromkeys(valid)
        for each in likely:
            for other in neighbours(space, each, shape, device):
                if len(found) < FIRST:
                    found.setdefault(other)
        return list(found)

    def is_search_worth(self, shape: Shape) -> bool:
        """Return True if a search is expected to gain over ``WORTH``, or too few shapes of its class were searched."""
        here = likeness(shape, self.device)
        apart = sorted((here.distance(likeness(other, self.device)), gain) for other, gain in self.gains)
        near = [gain for distance, gain in apart if distance < math.inf][:NEAREST]
        return len(near) < ENOUGH or sum(near) / len(near) > WORTH

    def _kin(self, shape: Shape) -> list[RecordedShape]:
        """Return the recorded shapes of the class, the most alike first."""
        here = likeness(shape, self.device)
        kin = [(here.distance(likeness(each.shape, each.device)), each) for each in self.recordings.values()]
        alike = [(distance, each) for distance, each in kin if distance < math.inf]
        return [each for _, each in sorted(alike, key=lambda item: (item[0], repr((item[1].shape, item[1].device))))]

    def _usual(self, shape: Shape) -> list[Config]:
        """Return what won most often in other classes, of a class in which nothing is recorded."""
        counts = Counter(each.best for each in self.recordings.values())
        space = self.implementation.space
        return [config for config, _ in counts.most_common() if space.why_invalid(config, shape, self.device) is None]


def neighbours(space: Space[Any], config: Config, shape: Shape, device: Device) -> list[Config]:
    """List the valid configs that differ in one parameter, by one step where its values are ordered."""
    return [other for other in _steps(space, config, device) if _is_valid(space, other, shape, device)]


def _steps(space: Space[Any], config: Config, device: Device) -> Iterator[Config]:
    for parameter in space.parameters:
        choices, value = parameter.choices(device, config), config[parameter.name]
        if value not in choices:
            continue
        place = choices.index(value)
        for other, choice in enumerate(choices):
            if other != place and (not parameter.is_ordered or abs(other - place) == 1):
                yield Config({**config, parameter.name: choice})


def _is_valid(space: Space[Any], config: Config, shape: Shape, device: Device) -> bool:
    try:
        return space.why_invalid(config, shape, device) is None
    except UsageError:  # a rule that cannot judge values which do not go together
        return False
