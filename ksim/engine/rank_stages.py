"""Pipeline stages whose GPUs are `Rank` processes: who meets whom in a step, and what is told of it.

Ranks of an engine that are alike are one process.  Collectives among them need no meeting: their times are known.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy
from attrs import define, field, frozen
from numpy.typing import NDArray

from ksim.compute.graph import Collective
from ksim.cost.energy import FREE, Setting
from ksim.cost.step import Timer
from ksim.engine.rank_processes import Meeting, Process, Rank, RankWork, waits_of
from ksim.engine.rank_programs import ACROSS, KernelSequence, RankProgram, SegmentTimes
from ksim.engine.ranks import NOTHING, DataParallelGroup, InFlightBatch, LaunchTimes, Round
from ksim.flow.batch import Batch
from ksim.flow.costs import ClockScaling
from ksim.flow.events import RanksMet, RankTimeline
from ksim.flow.steps import KernelCost, PricedBlock, StepCost

if TYPE_CHECKING:
    from ksim.engine.rank_experts import DrawnExperts, StepExperts
    from ksim.engine.rank_links import UnlikeLinks

__all__ = ["RankRounds", "RankStage", "RankStages", "TensorGroup"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@define(eq=False)
class StageShare:
    """An engine's part of a step in a stage: its inputs are prepared and its last kernel is launched at `times`.

    All engines have `tokens` together.  `collectives` are those of the step by the labels of their kernels.
    """

    member: int
    step_cost: StepCost
    times: LaunchTimes
    setting: Setting
    tokens: int
    collectives: Callable[[], Mapping[str, Collective]]
    done: Meeting
    #: The collective of each meeting of its ranks, "" for the last.
    names: Sequence[str] = field(default=(), init=False)
    parts: list[RankWork] = field(factory=list, init=False)
    scalings: list[ClockScaling] = field(factory=list, init=False)

    @property
    def start(self) -> float:
        """When its first rank began."""
        return min(part.started for part in self.parts)

    @property
    def scaling(self) -> ClockScaling:
        """How SM clocks scaled its step, on average over its ranks."""
        first = self.scalings[0]
        if all(scaling is first for scaling in self.scalings):
            return first
        means = np.mean([(each.time, each.energy, each.power, each.clock) for each in self.scalings], axis=0)
        return ClockScaling(*means.tolist())


@frozen(eq=False)
class TensorGroup:
    """The ranks of an engine in a stage, in the order of their GPUs, and the `delays` of their hosts in a step."""

    ranks: Sequence[Rank]
    delays: Callable[[float], Sequence[float]]


#: Programs that a stage keeps.
MOST_PROGRAMS = 2048
#: The first so many steps have timelines, and those in which ranks wait so many times as much as in any before.
SHOWN, WORSE = 8, 1.1


@define(eq=False)
class RankStage:
    """The GPUs of one pipeline stage of an engine, or of all engines that share experts; `lanes` has those of each.

    A step is played once all of them have a share in it, and `note` is given it when all ranks are done.  Each `slices`
    GPUs in a row hold the same experts.  `growing` says how many of a collective's seconds are for its bytes.  Before a
    step, `rearrange` may move experts; its event fires when they have moved.
    """

    env: simpy.Environment
    number: int
    lanes: Mapping[int, TensorGroup]
    growing: Callable[[Collective], float]
    note: Callable[[RanksMet], object]
    experts: "DrawnExperts | None" = None
    slices: int = 1
    links: "UnlikeLinks | None" = None
    rearrange: Callable[[], simpy.Event | None] | None = None
    _shares: list[StageShare] = field(factory=list, init=False)
    _shown: int = field(default=0, init=False)
    _worst: float = field(default=0.0, init=False)
    #: By the identity of blocks, which all steps of a plan share; the blocks are kept, so that no others get their id.
    _programs: dict[int, tuple[Sequence[PricedBlock], RankProgram]] = field(factory=dict, init=False)

    def enter(self, share: StageShare) -> None:
        """Have the ranks of an engine compute their *share*, whose `done` fires when they have."""
        self._shares.append(share)
        if len(self._shares) < len(self.lanes):
            return
        shares, self._shares = sorted(self._shares, key=lambda share: share.member), []
        if self.rearrange is None or (moved := self.rearrange()) is None:
            self._play(shares)
        else:
            self.env.process(self._play_after(moved, shares))

    def _play_after(self, moved: simpy.Event, shares: Sequence[StageShare]) -> Process:
        """Play a step once experts have *moved*."""
        yield moved
        for share in shares:
            share.times = LaunchTimes(max(share.times.prepared, self.env.now), share.times.launched)
        self._play(shares)

    def _play(self, shares: Sequence[StageShare]) -> None:
        play = Play(self, shares)
        play.begin()
        self.env.process(self._follow(play))

    def program(self, step: StepCost) -> RankProgram:
        """The program of *step*, and of others with its blocks."""
        known = self._programs.get(id(step.blocks))
        if known is None:
            if step.halves:
                program = RankProgram.alternating((self.program(step.halves[0]), self.program(step.halves[1])))
            else:
                program = RankProgram.of(step.blocks, self.experts.labels if self.experts else frozenset())
            if len(self._programs) >= MOST_PROGRAMS:
                self._programs.clear()
            known = self._programs[id(step.blocks)] = step.blocks, program
        return known[1]

    def shows(self, waiting: float) -> bool:
        """Whether a step of which ranks spent such a share *waiting* is worth a timeline: the first, and the worst."""
        self._shown += 1
        if self._shown > SHOWN and waiting <= WORSE * self._worst:
            return False
        self._worst = max(self._worst, waiting)
        return True

    def _follow(self, play: "Play") -> Process:
        for share in play.shares:
            if not share.done.processed:
                yield share.done
        self.note(play.told())


@define(eq=False)
class Play:
    """A step of the ranks of a `stage`: it says who meets whom and, afterwards, who waited for whom, and why."""

    stage: RankStage
    shares: Sequence[StageShare]
    _drawn: "StepExperts | None" = field(default=None, init=False)
    _programs: list[RankProgram] = field(init=False)
    _across: dict[tuple[int, int], Meeting | None] = field(factory=dict, init=False)
    _alike: dict[RankProgram, list[Meeting | None]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._programs = [self.stage.program(share.step_cost) for share in self.shares]

    def begin(self) -> None:
        """Give all ranks what they have to do."""
        stage, gpu = self.stage, 0
        if stage.experts is not None:
            halves = max(2 if program.halves else 1 for program in self._programs)
            self._drawn = stage.experts.draw(self.shares[0].tokens, halves)
        for share, program in zip(self.shares, self._programs, strict=True):
            lane, timed = stage.lanes[share.member], self._timed(share, program)
            by_rank = self._meetings(share, program, timed.together)
            kept = np.flatnonzero([meeting is not None for meeting in by_rank[0]])
            share.names = [message.label if (message := program.segments[place].message) else "" for place in kept]
            columns = Columns(timed, kept, [program.strands[place] for place in kept])
            delays = lane.delays(share.times.prepared)
            for rank, delay, meetings in zip(lane.ranks, delays, by_rank, strict=True):
                scaling = rank.pace(share.step_cost, share.times.prepared, share.setting)
                experts = self._experts(program, gpu, scaling.time)
                share.parts.append(columns.part(share.times, delay, scaling.time, experts, program.besides, meetings))
                share.scalings.append(scaling)
                gpu += len(rank.gpus)
        for share in self.shares:  # nobody goes on before all is known
            for rank, part in zip(stage.lanes[share.member].ranks, share.parts, strict=True):
                rank.take(part)

    def _timed(self, share: StageShare, program: RankProgram) -> SegmentTimes:
        """The segments of *share*; the fullest rank gets more bytes than the average, and an exchange waits for it."""
        timed = program.timed(share.step_cost)
        if self._drawn is None or program.sent.max() < 0:
            return timed
        growing, rows = program.growing(share.collectives, self.stage.growing), self._drawn.rows
        fullest = rows.max(axis=1) / np.maximum(rows.mean(axis=1), 1e-9)
        fuller = np.append(fullest - 1.0, 0.0)  # the last one is of what carries no experts' tokens
        return timed._replace(together=timed.together + fuller[program.sent] * growing)

    def _experts(self, program: RankProgram, gpu: int, pace: float) -> tuple[Floats, Floats] | None:
        """The seconds of the experts on the stage's GPU number *gpu*, segment by segment: at boost, and at *pace*."""
        if self._drawn is None:
            return None
        column = gpu // self.stage.slices
        at_boost = np.append(self._drawn.seconds[:, column], 0.0)
        clocked = np.append(self._drawn.clocked[:, column], 0.0)
        return at_boost[program.layers], (at_boost + (pace - 1.0) * clocked)[program.layers]

    def _meetings(self, share: StageShare, program: RankProgram, together: Floats) -> list[list[Meeting | None]]:
        """For each rank of *share*, the meeting at the end of each segment; None where nobody else comes."""
        ranks = len(self.stage.lanes[share.member].ranks)
        if ranks > 1 or self.stage.links is not None:
            return self._made(share, program, together)
        if program not in self._alike:  # all engines of one rank come to the same meetings, but for the last
            self._alike[program] = self._made(share, program, together)[0]
        return [[*self._alike[program][:-1], share.done]]

    def _made(self, share: StageShare, program: RankProgram, together: Floats) -> list[list[Meeting | None]]:
        ranks, across = len(self.stage.lanes[share.member].ranks), 0
        by_segment: list[list[Meeting | None]] = []
        for place, (segment, seconds) in enumerate(zip(program.segments, together.tolist(), strict=True), 1):
            message = segment.message
            if message is None:  # the end, of the first half or of the step
                by_segment.append([share.done if place == len(program.segments) else None] * ranks)
            elif message.group in ACROSS:
                slots = range(ranks) if message.group == "data" else [-1] * ranks
                by_segment.append([self._everybody(share, message, (across, slot), seconds) for slot in slots])
                across += 1
            else:
                met = self._meeting(share, message, ranks, seconds)
                if met is None and segment.beside != KernelSequence():  # what runs beside it may last longer
                    met = Meeting(self.stage.env, 1, seconds)
                by_segment.append([met] * ranks)
        return [list(column) for column in zip(*by_segment, strict=True)]

    def _everybody(self, share: StageShare, message: KernelCost, key: tuple[int, int], seconds: float
                   ) -> Meeting | None:
        """Meeting number `key[0]` of all engines: of their ranks number `key[1]`, or of all (-1)."""
        if key not in self._across:
            number, slot = key
            coming = [len(self.stage.lanes[other.member].ranks) if slot < 0 else 1
                      for other, program in zip(self.shares, self._programs, strict=True) if program.across > number]
            self._across[key] = self._meeting(share, message, sum(coming), seconds)
        return self._across[key]

    def _meeting(self, share: StageShare, message: KernelCost, ranks: int, seconds: float) -> Meeting | None:
        if self.stage.links is not None:
            made = self.stage.links(share.collectives()[message.label], share.member, ranks, seconds)
            if made is not None:
                return made
        return Meeting(self.stage.env, ranks, seconds) if ranks > 1 else None

    def told(self) -> RanksMet:
        """Who waited for whom, and why."""
        parts = [part for share in self.shares for part in share.parts]
        ranks = [rank for share in self.shares for rank in self.stage.lanes[share.member].ranks]
        first, waits = min(part.started for part in parts), waits_of(parts)
        gpus = np.array([gpu for rank in ranks for gpu in rank.gpus])
        row = np.repeat(np.arange(len(ranks)), [len(rank.gpus) for rank in ranks])
        busy = np.array([part.busy for part in parts])
        end = max(share.done.end for share in self.shares)
        waiting = waits.sum() / len(parts) / (end - first) if end > first else 0.0
        timeline = self._timeline(parts, row) if self.stage.shows(waiting) else None
        return RanksMet(time=end, engine=self.shares[0].member, stage=self.stage.number, start=first, gpus=gpus,
                        busy=busy[row], waits=waits[:, row], timeline=timeline)

    def _timeline(self, parts: Sequence[RankWork], row: Ints) -> RankTimeline:
        most = max(len(part.came) for part in parts)
        columns = np.full((3, len(parts), most), np.nan)
        for number, part in enumerate(parts):
            columns[0, number, :len(part.came)] = part.came
            columns[1:, number, :len(part.came)] = np.array([(each.latest, each.end) for each in part.meetings]).T
        names = max((share.names for share in self.shares), key=len)
        came, latest, left = columns[:, row]
        return RankTimeline(names, np.array([part.started for part in parts])[row], came, latest, left,
                            None if self._drawn is None else self._drawn.rows)


@frozen(eq=False)
class Columns:
    """The segments of one engine's step, of which `kept` end with a meeting: those between are joined."""

    timed: SegmentTimes
    kept: Ints
    strands: Sequence[int]
    _firsts: Ints = field(init=False)
    _more: list[float] = field(init=False)
    _requests: Floats = field(init=False)

    @_firsts.default
    def _begin(self) -> Ints:
        return np.concatenate([[0], self.kept[:-1] + 1])

    @_more.default
    def _unmet(self) -> list[float]:
        unmet = self.timed.together.copy()
        unmet[self.kept] = 0.0
        return list(self._joined(unmet).tolist())

    @_requests.default
    def _at_boost(self) -> Floats:
        return self._joined(self.timed.at_boost + self.timed.clocked)

    def _joined(self, column: Floats) -> Floats:
        return np.add.reduceat(column, self._firsts)

    def part(self, times: LaunchTimes, delay: float, pace: float, experts: tuple[Floats, Floats] | None,
             besides: Floats, meetings: Sequence[Meeting | None]) -> RankWork:
        """The part of a rank whose clock makes kernels *pace* times as long, with so many seconds of *experts*, a share
        *besides* of them beside a collective, and with a host that is late by *delay*."""
        own = self.timed.at_boost + pace * self.timed.clocked
        beside = self.timed.beside + pace * self.timed.beside_clocked
        at_boost = np.zeros(len(self.kept))
        if experts is not None:
            own, at_boost = own + (1 - besides) * experts[1], self._joined((1 - besides) * experts[0])
            beside = beside + besides * experts[1]
        return RankWork(
            times.prepared + delay, times.launched + delay, own=self._joined(own).tolist(), more=self._more,
            beside=beside[self.kept].tolist(), meetings=[one for one in meetings if one is not None],
            strands=self.strands, requests=self._requests, experts=at_boost)


@define(eq=False)
class RankStages:
    """`detail = "rank"`: the pipeline of an engine whose GPUs are SimPy processes, stage by stage.

    Engines that share experts share the `stages`.  `member` is the number of this one.
    """

    env: simpy.Environment
    member: int
    stages: Sequence[RankStage]
    timers: Sequence[Timer]
    _queues: list[simpy.Store] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._queues = [simpy.Store(self.env) for _ in self.stages]
        for stage in range(len(self.stages)):
            self.env.process(self._serve(stage))

    def launch(self, step_costs: Sequence[StepCost], launches: Sequence[LaunchTimes],
               source: InFlightBatch | None = None, settings: Sequence[Setting] = (), batch: Batch = NOTHING,
               tokens_by_rank: Sequence[int] = ()) -> InFlightBatch:
        """Send a batch through the stages, as `Stages.launch` says; all engines that share experts do, in each round.
        """
        sent = Sent(InFlightBatch(self.env.event()), step_costs, launches, source, settings, batch, tokens_by_rank)
        self._queues[0].put(sent)
        return sent.in_flight

    def _serve(self, number: int) -> Process:
        """Have stage *number* compute one batch after another."""
        stage, timer, last = self.stages[number], self.timers[number], number + 1 == len(self.stages)
        while True:
            sent = yield self._queues[number].get()
            if number == 0 and sent.source is not None and not sent.source.done.processed:
                yield sent.source.done
            share = self._share(stage, timer, sent)
            stage.enter(share)
            yield share.done
            in_flight = sent.in_flight
            if number == 0:
                in_flight.start = share.start
            in_flight.scalings += (share.scaling,)
            alone = max(share.start + sent.step_costs[number].seconds_at(share.scaling), sent.launches[number].launched)
            in_flight.waits += (share.done.end - alone,)
            if last:
                in_flight.end = share.done.end
                in_flight.done.succeed()
            else:
                self._queues[number + 1].put(sent)

    def _share(self, stage: RankStage, timer: Timer, sent: "Sent") -> StageShare:
        number, batch, tokens = stage.number, sent.batch, sent.tokens_by_rank
        prepared = max(self.env.now, sent.launches[number].prepared)
        return StageShare(self.member, sent.step_costs[number], LaunchTimes(prepared, sent.launches[number].launched),
                     sent.settings[number] if sent.settings else FREE, timer.everywhere(batch, tokens),
                     cache(lambda: {cost.label: launch for launch, cost, _ in timer.launches(batch, tokens)
                                    if isinstance(launch, Collective)}),
                     Meeting(self.env, len(stage.lanes[self.member].ranks), 0.0))


@frozen(eq=False)
class Sent:
    """A batch on its way through the stages of an engine."""

    in_flight: InFlightBatch
    step_costs: Sequence[StepCost]
    launches: Sequence[LaunchTimes]
    source: InFlightBatch | None
    settings: Sequence[Setting]
    batch: Batch
    tokens_by_rank: Sequence[int]


@define(eq=False)
class RankRounds(DataParallelGroup):
    """A data-parallel group whose ranks meet in each layer's collectives, not at the end of a step alone."""

    def meet(self, member: int, joined: Round, in_flight: InFlightBatch
             ) -> Generator[simpy.Event, Any, InFlightBatch]:
        """Return *in_flight*: its ranks wait for those of others as they go."""
        return in_flight
        yield

    def _close_if_complete(self) -> None:
        closing = self._round
        super()._close_if_complete()
        if closing is not self._round:
            for dummy in closing.dummies:
                dummy(closing)
