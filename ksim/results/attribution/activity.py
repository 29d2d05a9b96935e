"""What an engine does at each moment, as seconds that have added up by then."""

from functools import cached_property

import numpy as np
from attrs import define, frozen

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
    def _stretched(self) -> Floats:
        """How many times as long the rest takes as the kernels of each step."""
        working = self.ends - self.begins - self.launches
        return shares(working, self.shares.seconds.sum(axis=1))

    def seconds(self, steps: Ints) -> Floats:
        """The rest of some *steps* by `Shares.parts`: (steps, parts)."""
        return self.shares.seconds[steps] * self._stretched[steps][:, None]

    def prompts(self, steps: Ints) -> Floats:
        """What their chunks have of that: (steps, parts)."""
        return self.seconds(steps) * self.shares.prompts(steps)

    def _into(self, found: Floats, rows: slice) -> None:
        """Write down how long an engine does what in each of its steps, the host's time before it included:
        (activities, steps).  Few steps have chunks."""
        ahead, begins = self._steps.ahead[rows], self.begins[rows]
        scheduled = np.clip(self._steps.scheduled[rows], ahead, begins)
        found[UPDATE], found[SCHEDULE], found[LAUNCH] = scheduled - ahead, begins - scheduled, self.launches[rows]
        chunked = np.flatnonzero(self._steps.prefills[rows])
        prompts = self.prompts(rows.start + chunked)
        found[PROMPTS, chunked] = prompts.sum(axis=1)
        for part, family in enumerate(self.shares.family.tolist()):
            decodes = self.shares.seconds[rows, part] * self._stretched[rows]
            decodes[chunked] -= prompts[:, part]
            found[DECODES + family] += decodes

    @cached_property
    def _curves(self) -> list["_Curve"]:
        """Of each engine."""
        return [self._curve(self._steps.rows(place)) for place in range(len(self.history.engines))]

    def _curve(self, rows: slice) -> "_Curve":
        added = np.zeros((DECODES + len(self.shares.families), 1 + rows.stop - rows.start))
        self._into(added[:, 1:], rows)
        knots = np.stack([self._steps.ahead[rows] + added[UPDATE, 1:], self.begins[rows], self.ends[rows]], axis=1)
        return _Curve(np.append(0.0, knots.ravel()), np.cumsum(added, axis=1, out=added))

    def between(self, engine: Ints, begin: Floats, end: Floats) -> Floats:
        """Seconds of each activity between two moments, on the engines at these places: (moments, activities)."""
        found = np.zeros((len(engine), DECODES + len(self.shares.families)))
        for place, curve in enumerate(self._curves):
            which = engine == place
            found[which] = curve.by(end[which]) - curve.by(begin[which])
        return found


@frozen(eq=False)
class _Curve:
    """What has added up by when: `knots` in time, the beginning and three for each step, with straight lines between.

    `added` is what has added up after so many steps, (activities, 1 + steps): up to its first knot an engine updates in
    a step, up to the second it schedules, and up to the third its GPUs have it.
    """

    knots: Floats
    added: Floats

    def by(self, times: Floats) -> Floats:
        """What has added up by each of *times*: (times, activities)."""
        knots, last = self.knots, len(self.knots) - 1
        before = np.clip(np.searchsorted(knots, times, side="right") - 1, 0, max(last - 1, 0))
        after = np.minimum(before + 1, last)
        passed = shares(np.clip(times, knots[0], knots[-1]) - knots[before], knots[after] - knots[before])
        found = np.empty((len(times), len(self.added)))
        for knot, which in enumerate((slice(UPDATE, SCHEDULE), slice(SCHEDULE, LAUNCH), slice(LAUNCH, None))):
            low, high = (self.added[which, (place + 2 - knot) // 3].T for place in (before, after))
            found[:, which] = low + passed[:, None] * (high - low)
        return found
