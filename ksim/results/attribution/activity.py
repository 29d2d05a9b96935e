"""What an engine does at each moment, as seconds that have added up by then."""

from functools import cached_property

import numpy as np
from attrs import define

from ksim.results.arrays import Floats, Ints, shares
from ksim.results.attribution.shares import Shares
from ksim.results.history import History
from ksim.results.steps import Steps

#: What is told apart beside the families of decodes, which follow in the order of `Shares.families`.
UPDATE, SCHEDULE, LAUNCH, PROMPTS = range(4)
#: The first of them.
DECODES = 4


@define(eq=False, slots=False)
class Activity:
    """Every moment of an engine's time belongs to the step that ends next: to its GPUs, or to the host before it.

    A step has its GPUs from its start to its end, but not before the step ahead of it has ended: where batches
    overtake nobody, as on one stage, that is all of its time; of several stages' it is what the step adds.  Before
    that, the host takes in the last step's tokens until it schedules this one, then schedules and prepares it.
    The GPUs' time is split as `Shares` says: what is not clear of launches, and, where there are several stages,
    between them, is stretched over the families.
    """

    history: History
    shares: Shares

    @property
    def _steps(self) -> Steps:
        return self.history.steps

    @property
    def ends(self) -> Floats:
        return self._steps.ended

    @property
    def begins(self) -> Floats:
        """When the GPUs' time of each step begins."""
        return self._steps.begun

    @cached_property
    def launches(self) -> Floats:
        """For how much of it the GPUs wait for launches; all of it where the step has no kernels."""
        lengths, busy = self.ends - self.begins, self._steps.stage_seconds
        return np.where(busy > 0, np.minimum(self._steps.launch_waits, lengths), lengths)

    @cached_property
    def seconds(self) -> Floats:
        """The rest by `Shares.parts`: (steps, parts)."""
        working = self.ends - self.begins - self.launches
        return self.shares.seconds * shares(working, self.shares.seconds.sum(axis=1))[:, None]

    @cached_property
    def prompts(self) -> Floats:
        """What each step's chunks have of that: (steps, parts)."""
        return self.seconds * self.shares.prompts

    @cached_property
    def _of_steps(self) -> Floats:
        """How long the engine does what in each step, the host's time before it included: (steps, activities)."""
        scheduled = np.clip(self._steps.scheduled, self._steps.ahead, self.begins)
        found = np.zeros((len(self._steps), DECODES + len(self.shares.families)))
        found[:, UPDATE] = scheduled - self._steps.ahead
        found[:, SCHEDULE] = self.begins - scheduled
        found[:, LAUNCH] = self.launches
        found[:, PROMPTS] = self.prompts.sum(axis=1)
        for family, column in zip(self.shares.family.tolist(), (self.seconds - self.prompts).T, strict=True):
            found[:, DECODES + family] += column
        return found

    @cached_property
    def _curves(self) -> list[tuple[Floats, Floats]]:
        """Of each engine knots in time, three for each step, and what has added up by then."""
        return [self._curve(place) for place in range(len(self.history.engines))]

    def _curve(self, place: int) -> tuple[Floats, Floats]:
        rows = self._steps.rows(place)
        amounts = self._of_steps[rows]
        heights = np.zeros((1 + 3 * len(amounts), amounts.shape[1]))
        heights[1::3, UPDATE] = amounts[:, UPDATE]
        heights[2::3, SCHEDULE] = amounts[:, SCHEDULE]
        heights[3::3, LAUNCH:] = amounts[:, LAUNCH:]
        knots = np.stack([self._steps.ahead[rows] + amounts[:, UPDATE], self.begins[rows], self.ends[rows]], axis=1)
        return np.append(0.0, knots.ravel()), np.cumsum(heights, axis=0, out=heights)

    def between(self, engine: Ints, begin: Floats, end: Floats) -> Floats:
        """Seconds of each activity between two moments, on the engines at these places: (moments, activities)."""
        found = np.zeros((len(engine), DECODES + len(self.shares.families)))
        for place, curve in enumerate(self._curves):
            which = engine == place
            found[which] = _by(end[which], *curve) - _by(begin[which], *curve)
        return found


def _by(times: Floats, knots: Floats, heights: Floats) -> Floats:
    """What has added up by each of *times*: as many columns as *heights* has, which are joined by straight lines."""
    before = np.clip(np.searchsorted(knots, times, side="right") - 1, 0, max(len(knots) - 2, 0))
    after = np.minimum(before + 1, len(knots) - 1)
    passed = shares(np.clip(times, knots[0], knots[-1]) - knots[before], knots[after] - knots[before])
    return heights[before] + passed[:, None] * (heights[after] - heights[before])
