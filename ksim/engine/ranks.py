"""The GPUs of an engine: pipeline stages, through which batches go in order, and the ranks of each.

Whole steps take a stage as long as they cost.  Kernel by kernel, ranks are SimPy processes, which compute between
collectives and wait for each other in them.  Engines that share a mixture's experts are a data-parallel group: they
step together, and wait for the slowest.  Workers are the host's threads that prepare a step's inputs and launch its
kernels, one for each pipeline stage.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import simpy
from attrs import define, evolve, field, frozen

from ksim.cost.energy import FREE, Clock, Setting
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.network.network import Network
from ksim.specs.host import Worker


class Segment(NamedTuple):
    """A rank computes for `alone` seconds, then is in a collective for `together`, beside kernels of `beside`."""

    alone: float
    together: float
    beside: float


@frozen
class KernelSequence:
    """Kernels of one rank in a row: seconds `at_boost`, those that are `clocked`, and how often each hole comes."""

    at_boost: float = 0.0
    clocked: float = 0.0
    holes: tuple[tuple[int, int], ...] = ()

    def and_then(self, kernel: KernelCost | int, times: int = 1) -> "KernelSequence":
        """The same with *kernel* appended so many times; a hidden kernel runs at the boost clock."""
        if isinstance(kernel, int):
            return evolve(self, holes=(*self.holes, (kernel, times)))
        if kernel.is_compute_bound and not kernel.hidden:
            return evolve(self, clocked=self.clocked + times * kernel.lasts)
        return evolve(self, at_boost=self.at_boost + times * kernel.lasts)

    def seconds(self, fills: Sequence[KernelCost], pace: float) -> float:
        own = sum(times * fills[hole].lasts * (pace if fills[hole].is_compute_bound else 1.0)
                  for hole, times in self.holes)
        return self.at_boost + pace * self.clocked + own


@frozen(eq=False)
class SegmentTemplate:
    """A segment of all steps of a shape, before holes are filled and the clock is known."""

    alone: KernelSequence
    together: float = 0.0
    beside: KernelSequence = KernelSequence()

    def segment(self, fills: Sequence[KernelCost], pace: float) -> Segment:
        return Segment(self.alone.seconds(fills, pace), self.together, self.beside.seconds(fills, pace))


@define(eq=False)
class RankProgram:
    """The segments of a step's blocks in order, equal ones the same object."""

    segments: list[SegmentTemplate] = field(factory=list, init=False)
    _alone: KernelSequence = field(default=KernelSequence(), init=False)
    _hidden: KernelCost | None = field(default=None, init=False)

    @classmethod
    def of(cls, blocks: Sequence[PricedBlock]) -> "RankProgram":
        program = cls()
        for block in blocks:
            program._take(block)
        program.segments.append(SegmentTemplate(program._alone))
        return program

    def timed(self, fills: Sequence[KernelCost], pace: ClockScaling) -> list[Segment]:
        """The segments of a step with such *fills*, at *pace*."""
        known = {segment: segment.segment(fills, pace.time) for segment in dict.fromkeys(self.segments)}
        return [known[segment] for segment in self.segments]

    def _take(self, block: PricedBlock) -> None:
        """Append *block*; from its second repetition on, all are the same."""
        if not any(isinstance(kernel, KernelCost) and kernel.group for kernel in block.launches):
            for kernel in block.launches:
                self._alone = self._alone.and_then(kernel, block.repeat)
            return
        for _ in range(min(block.repeat, 2)):
            before = len(self.segments)
            for kernel in block.launches:
                self._add(kernel)
        self.segments += self.segments[before:] * (block.repeat - 2)

    def _add(self, kernel: KernelCost | int) -> None:
        if isinstance(kernel, KernelCost) and kernel.hidden:
            self._hidden = kernel
            return
        hidden, self._hidden = self._hidden, None
        if isinstance(kernel, KernelCost) and kernel.group:
            self._meet(kernel, hidden)
        elif hidden:
            self._meet(hidden, kernel)
        else:
            self._alone = self._alone.and_then(kernel)

    def _meet(self, message: KernelCost, product: KernelCost | int | None) -> None:
        assert message.group, "what is hidden is a collective, or runs beside one"
        beside = KernelSequence() if product is None else KernelSequence().and_then(product)
        self.segments.append(SegmentTemplate(self._alone, message.lasts, beside))
        self._alone = KernelSequence()


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


@frozen
class LaunchTimes:
    """When a step's inputs are prepared, and when the last of its kernels is launched."""

    prepared: float
    launched: float


@define(eq=False)
class Workers:
    """Each works off the steps in order, one at a time."""

    costs: Worker
    _free: list[float] = field(factory=list, init=False)

    @property
    def free(self) -> float:
        """When the worker of the first stage has worked off all steps so far."""
        return self._free[0] if self._free else 0.0

    def launch(self, batch: Batch, step_costs: Sequence[StepCost], ready: float) -> list[LaunchTimes]:
        """Have every stage's worker prepare and launch its part of a step that is known to them at *ready*."""
        self._free += [0.0] * (len(step_costs) - len(self._free))
        prepare = self.costs.preparing(batch.sequences)
        launches = []
        for stage, step_cost in enumerate(step_costs):
            prepared = max(ready, self._free[stage]) + prepare
            self._free[stage] = prepared + step_cost.launch_seconds
            launches.append(LaunchTimes(prepared, self._free[stage]))
        return launches


@define(eq=False)
class InFlightBatch:
    """A batch on the GPUs: `done` fires when the last stage has computed it; `scalings` are those of its stages."""

    done: simpy.Event
    start: float = 0.0
    end: float = 0.0
    scalings: tuple[ClockScaling, ...] = ()


class Stages(Protocol):
    clocks: Sequence[Clock]

    def launch(self, step_costs: Sequence[StepCost], launches: Sequence[LaunchTimes],
               source: InFlightBatch | None = None, settings: Sequence[Setting] = ()) -> InFlightBatch:
        """Send a batch through the stages, with a step_cost for each; it needs the tokens that *source* samples.

        *settings* are the caps and clocks that the GPUs of each stage keep to, if there are any.  A stage begins when
        its inputs are prepared, and does not end before its last kernel is launched.
        """
        ...


@define(eq=False)
class WholeSteps:
    """`detail = "step"`: the times of a batch in the stages are worked out by arithmetic; its end is one event.

    `clocks` are the SM clocks of each stage's GPUs, where a power limit applies.
    """

    env: simpy.Environment
    stages: int
    clocks: Sequence[Clock] = ()
    _free: list[float] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = [0.0] * self.stages

    def launch(self, step_costs: Sequence[StepCost], launches: Sequence[LaunchTimes],
               source: InFlightBatch | None = None, settings: Sequence[Setting] = ()) -> InFlightBatch:
        start, scalings = 0.0, []
        end = max(self.env.now, source.end if source else 0.0)
        for stage, (step_cost, launch) in enumerate(zip(step_costs, launches, strict=True)):
            begin = max(end, self._free[stage], launch.prepared)
            setting = settings[stage] if settings else FREE
            pace = self.clocks[stage].pace(step_cost, begin, setting) if self.clocks else AT_BOOST
            end = self._free[stage] = max(begin + step_cost.seconds_at(pace), launch.launched)
            start = start if stage else begin
            scalings.append(pace)
        return InFlightBatch(self.env.timeout(end - self.env.now), start, end, tuple(scalings))

    def hold(self, end: float, late: float) -> None:
        """Keep the only stage busy until *end*; if there are several, let each be free *late* seconds later."""
        self._free = [max(end, *self._free)] if self.stages == 1 else [free + late for free in self._free]


@define(eq=False)
class KernelByKernel:
    """`detail = "kernel"`: every stage is a process, and so is every rank in it."""

    env: simpy.Environment
    rank_groups: Sequence[RankGroup]
    clocks: Sequence[Clock] = ()
    _queues: list[simpy.Store] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._queues = [simpy.Store(self.env) for _ in self.rank_groups]
        for stage in range(len(self.rank_groups)):
            self.env.process(self._stage(stage))

    def launch(self, step_costs: Sequence[StepCost], launches: Sequence[LaunchTimes],
               source: InFlightBatch | None = None, settings: Sequence[Setting] = ()) -> InFlightBatch:
        in_flight = InFlightBatch(self.env.event())
        self._queues[0].put((in_flight, step_costs, launches, source, settings))
        return in_flight

    def _stage(self, stage: int) -> Process:
        while True:
            in_flight, step_costs, launches, source, settings = yield self._queues[stage].get()
            if stage == 0 and source is not None:
                yield source.done
            yield from self._until(launches[stage].prepared)
            if stage == 0:
                in_flight.start = self.env.now
            setting = settings[stage] if settings else FREE
            pace = self.clocks[stage].pace(step_costs[stage], self.env.now, setting) if self.clocks else AT_BOOST
            in_flight.scalings += (pace,)
            yield self.rank_groups[stage].play(step_costs[stage], pace)
            yield from self._until(launches[stage].launched)
            if stage + 1 < len(self.rank_groups):
                self._queues[stage + 1].put((in_flight, step_costs, launches, source, settings))
            else:
                in_flight.end = self.env.now
                in_flight.done.succeed()

    def _until(self, moment: float) -> Process:
        if moment > self.env.now:
            yield self.env.timeout(moment - self.env.now)


def wait(seconds: float) -> KernelCost:
    """The wait of a rank that is done before the others, in their next collective."""
    return KernelCost.of("wait_for_ranks", "wait_for_ranks", seconds, bound="communication", group="data",
                         source="convoy", low=seconds, high=seconds)


@define(eq=False)
class Round:
    """One step of all `size` members: the tokens of each, and when each would be done if it were alone.

    One without work has the tokens of a `dummy` sequence.

    `dummies` log the steps of the members without a batch, once the end of the round is known.
    """

    size: int
    dummy: int
    closed: simpy.Event
    ended: simpy.Event
    tokens: dict[int, int] = field(factory=dict)
    starts: list[float] = field(factory=list)
    ends: dict[int, float] = field(factory=dict)
    dummies: list["Dummy"] = field(factory=list)

    @property
    def tokens_by_rank(self) -> list[int]:
        """The tokens of each member; one without work computes a dummy sequence, as in vLLM."""
        return [*self.tokens.values(), *[self.dummy] * (self.size - len(self.tokens))]

    @property
    def start(self) -> float:
        """When the first GPU began."""
        return min(self.starts)

    @property
    def end(self) -> float:
        """When the slowest member is done."""
        return max(self.ends.values())


#: Logs the dummy step that a member without work computed in a round.
Dummy = Callable[[Round], object]


@define(eq=False)
class DataParallelGroup:
    """`size` engines.  A round begins when all that have work have a batch; the others hold nobody up.

    Those compute a sequence of `dummy` tokens.  `latest` is the batch of the last round's slowest member.
    """

    env: simpy.Environment
    size: int
    dummy: int = 1
    latest: InFlightBatch | None = field(default=None, init=False)
    _active: set[int] = field(factory=set, init=False)
    _members: dict[int, Callable[[], Dummy]] = field(factory=dict, init=False)
    _round: Round = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._round = self._next()

    def _next(self) -> Round:
        return Round(self.size, self.dummy, self.env.event(), self.env.event())

    def enlist(self, member: int, stand_in: Callable[[], Dummy]) -> None:
        """Have *stand_in* called whenever a round closes without a batch of *member*."""
        self._members[member] = stand_in

    def expect(self, member: int) -> None:
        """Wait for *member* in the next round: it has work."""
        self._active.add(member)

    def join(self, member: int, tokens: int) -> Generator[simpy.Event, Any, Round]:
        """Join the next round with a batch of so many *tokens*, and wait until all others have joined."""
        joined = self._round
        self._active.add(member)
        joined.tokens[member] = tokens
        self._close_if_complete()
        yield joined.closed
        return joined

    def rest(self, member: int) -> None:
        """Stop waiting for *member*, which has nothing to compute."""
        self._active.discard(member)
        self._close_if_complete()

    def meet(self, member: int, joined: Round, in_flight: InFlightBatch) -> Generator[simpy.Event, Any, InFlightBatch]:
        """Wait until the slowest member is done: that is when the batch *in_flight* ends."""
        joined.ends[member] = in_flight.end
        joined.starts.append(in_flight.start)
        if len(joined.ends) == len(joined.tokens):
            for dummy in joined.dummies:
                dummy(joined)
            joined.ended.succeed()
        yield joined.ended
        end = joined.end
        self.latest = InFlightBatch(self.env.timeout(end - self.env.now), in_flight.start, end, in_flight.scalings)
        return self.latest

    def _close_if_complete(self) -> None:
        closing = self._round
        if closing.tokens and self._active <= closing.tokens.keys():
            closing.dummies += [stand_in() for member, stand_in in self._members.items()
                                if member not in closing.tokens]
            closing.closed.succeed()
            self._round = self._next()
