"""Ranks as SimPy processes, which compute between collectives and wait for each other in them."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import simpy
from attrs import define, field

from ksim.engine.rank_program import RankProgram, Segment
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.steps import PricedBlock, StepCost
from ksim.network.network import Network

Process = Generator[simpy.Event, Any, None]


class End(simpy.Event):
    """The common end of a collective, scheduled once the last rank has said when it comes."""

    def after(self, seconds: float) -> None:
        self._ok, self._value = True, None
        self.env.schedule(self, delay=seconds)


@define(eq=False)
class Barrier:
    """A barrier for the collectives of `size` ranks, one after the other.

    A rank need not wake up in order to come: it says beforehand when it will be there.
    """

    env: simpy.Environment
    size: int
    _present: int = field(default=0, init=False)
    _latest: float = field(default=0.0, init=False)
    _end: End = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._end = End(self.env)

    def join(self, moment: float, seconds: float) -> simpy.Event:
        """Come at *moment*; the event fires *seconds* after all have come."""
        end = self._end
        self._latest = max(self._latest, moment)
        self._present += 1
        if self._present == self.size:
            end.after(self._latest - self.env.now + seconds)
            self._present, self._end = 0, End(self.env)
        return end


@define(eq=False)
class RankGroup:
    """The GPUs of one pipeline stage; `groups` has those that take part in each kind of collective.

    A collective begins when the last rank has come, and ends for all together.  `Route.seconds` says how long it
    takes to exchange all pieces, round by round.  A hidden kernel runs beside the one after it, at the boost clock.
    """

    env: simpy.Environment
    network: Network
    ranks: Sequence[int]
    groups: Mapping[str, Sequence[int]]
    #: By the identity of blocks, which all steps of a plan share; the blocks are kept, so that no others get their id.
    _programs: dict[int, tuple[Sequence[PricedBlock], RankProgram]] = field(factory=dict, init=False)

    def play(self, step_cost: StepCost, pace: ClockScaling = AT_BOOST) -> simpy.Event:
        """Have every rank execute *step_cost*, at *pace*; the event fires when the last is done."""
        segments = self._program(step_cost.blocks).timed(step_cost.batch_kernels, pace)
        return self.run_segments([segments] * len(self.ranks))

    def run_segments(self, segments: Sequence[Sequence[Segment]]) -> simpy.Event:
        """Have each rank run its own *segments*, of equal number; the event fires when the last rank is done."""
        barrier = Barrier(self.env, len(segments))
        return self.env.all_of([self.env.process(self._rank(own, barrier)) for own in segments])

    def _rank(self, segments: Sequence[Segment], barrier: Barrier) -> Process:
        env, ready = self.env, self.env.now
        for alone, together, beside in segments:
            came = ready + alone
            yield barrier.join(came, together)
            ready = max(env.now, came + beside)

    def _program(self, blocks: Sequence[PricedBlock]) -> RankProgram:
        known = self._programs.get(id(blocks))
        if known is None:
            known = self._programs[id(blocks)] = blocks, RankProgram.of(blocks)
        return known[1]
