"""Ranks: processes that play every kernel, and meet at collectives."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import simpy
from attrs import define, field

from ksim.engine.legs import Leg, Way
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.steps import PricedBlock, StepCost
from ksim.network.network import Network

Process = Generator[simpy.Event, Any, None]


class End(simpy.Event):
    """What ends for several processes at once, at a moment that is known once the last of them has come."""

    def after(self, seconds: float) -> None:
        self._ok, self._value = True, None
        self.env.schedule(self, delay=seconds)


@define(eq=False)
class Meeting:
    """A collective of `size` processes, and any number of them one after the other.

    Nobody needs to wake up in order to come: each says beforehand when it will be there.
    """

    env: simpy.Environment
    size: int
    _present: int = field(default=0, init=False)
    _latest: float = field(default=0.0, init=False)
    _end: End = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._end = End(self.env)

    def join(self, moment: float, seconds: float) -> simpy.Event:
        """Come at *moment*; the event fires when all have come and *seconds* have passed."""
        end = self._end
        self._latest = max(self._latest, moment)
        self._present += 1
        if self._present == self.size:
            end.after(self._latest - self.env.now + seconds)
            self._present, self._end = 0, End(self.env)
        return end


@define(eq=False)
class Gang:
    """The GPUs of one pipeline stage; `groups` names those that meet in each kind of collective.

    A collective begins when the last rank has come and ends for all together: it lasts as long as its ranks take to
    exchange their pieces, each a round as soon as it is through with the one before, which `Route.seconds` works out.
    What is hidden runs beside the span that follows, at the boost clock.
    """

    env: simpy.Environment
    network: Network
    ranks: Sequence[int]
    groups: Mapping[str, Sequence[int]]
    #: By the identity of blocks, which all steps of a plan share; the blocks are kept, that no others come by it.
    _ways: dict[int, tuple[Sequence[PricedBlock], Way]] = field(factory=dict, init=False)

    def play(self, timeline: StepCost, pace: ClockScaling = AT_BOOST) -> simpy.Event:
        """Have every rank execute *timeline*, at *pace*; the event fires when the last is done."""
        return self.travel([self._way(timeline.blocks).timed(timeline.batch_kernels, pace)] * len(self.ranks))

    def travel(self, legs: Sequence[Sequence[Leg]]) -> simpy.Event:
        """Have each rank go its own *legs*, as many as the others; the event fires when the last is done."""
        meeting = Meeting(self.env, len(legs))
        return self.env.all_of([self.env.process(self._rank(own, meeting)) for own in legs])

    def _rank(self, legs: Sequence[Leg], meeting: Meeting) -> Process:
        env, ready = self.env, self.env.now
        for alone, together, beside in legs:
            came = ready + alone
            yield meeting.join(came, together)
            ready = max(env.now, came + beside)

    def _way(self, blocks: Sequence[PricedBlock]) -> Way:
        known = self._ways.get(id(blocks))
        if known is None:
            known = self._ways[id(blocks)] = blocks, Way.of(blocks)
        return known[1]
