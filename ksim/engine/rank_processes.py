"""Ranks as SimPy processes: every GPU computes its own kernels, and meets others in collectives.

A `Rank` is a process that lives as long as the run.  It takes one step after another: it computes until a collective,
says when it will be there, and goes on when the collective ends.  A collective begins when the last of its ranks has
come, and ends for all together.  So a slow GPU, a busy host or a full expert delays just those that meet it, and what
they wait for can be told.  Between two collectives, a rank has the speed with which it begins.

Ranks of an engine that are alike are one process.  Collectives among them need no meeting: their times are known.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np
import simpy
from attrs import define, field, frozen
from numpy.typing import NDArray

from ksim.compute.graph import Collective
from ksim.cost.energy import FREE, Clock, Setting
from ksim.cost.step import Timer
from ksim.engine.rank_programs import ACROSS, KernelSequence, RankProgram, Timed
from ksim.engine.ranks import NOTHING, DataParallelGroup, InFlightBatch, LaunchTimes, Round
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.events import WAITS, RanksMet, RankTimeline
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.specs.ranks import SlowGpu

__all__ = ["Collect", "DrawnLayers", "Experts", "Lane", "Meeting", "Rank", "RankRounds", "RankStage", "RankStages"]

Process = Generator[simpy.Event, Any, None]
Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


class Meeting(simpy.Event):
    """A collective of so many *ranks*, which fires at its `end`, *seconds* after the last of them has come.

    A rank need not wake up in order to come: it says beforehand when it will be there.
    """

    #: By how many seconds it ended later than over links that are alike and alone.
    late = 0.0

    def __init__(self, env: simpy.Environment, ranks: int, seconds: float) -> None:
        super().__init__(env)
        self.missing, self.seconds = ranks, seconds
        self.latest = self.end = 0.0

    def join(self, moment: float) -> None:
        """Come at *moment*, which may lie ahead."""
        self.latest = max(self.latest, moment)
        self.missing -= 1
        if not self.missing:
            self._begin()

    def _begin(self) -> None:
        """All have said when they come."""
        self._fire(self.latest + self.seconds)

    def _fire(self, end: float) -> None:
        self.end, self._ok, self._value = end, True, None
        self.env.schedule(self, delay=max(0.0, end - self.env.now))


@define(eq=False)
class Part:
    """What one rank does in a step, from `begin` on: it computes `own` seconds at full speed, lets `more` pass in
    collectives of its like, and joins a meeting, again and again.

    Each meeting is of a micro-batch, `strands`: that one's next segment waits for it, the other's does not.  The rank
    does not come to the last one before its kernels are `launched`.  Of its own seconds, `requests` are those of its
    batch and `experts` those of its experts, both at the boost clock.
    """

    begin: float
    launched: float
    own: Sequence[float]
    more: Sequence[float]
    beside: Sequence[float]
    meetings: Sequence[Meeting]
    strands: Sequence[int]
    requests: Floats
    experts: Floats
    #: When the rank began, when it began to compute for each meeting and when it came there, how long its last launch
    #: kept it from coming to the last, and how many times as long as at full speed its kernels took in the end.
    started: float = field(default=0.0, init=False)
    held: float = field(default=0.0, init=False)
    slowness: float = field(default=1.0, init=False)
    began: list[float] = field(factory=list, init=False)
    came: list[float] = field(factory=list, init=False)

    @property
    def computed(self) -> Floats:
        """Seconds of its kernels before each meeting."""
        computed: Floats = np.array(self.came) - self.began - self.more
        computed[-1] -= self.held
        return computed

    @property
    def free(self) -> Floats:
        """When it had computed what runs beside each meeting."""
        free: Floats = np.array(self.came) + self.slowness * np.array(self.beside)
        return free

    @property
    def stalled(self) -> Floats:
        """Seconds for which it did nothing after each meeting, until it went on with that micro-batch."""
        free = self.free
        begins = np.array([*self.began[1:], self.meetings[-1].end])
        idle = np.maximum(begins - free, 0.0)
        if 1 not in self.strands:
            return idle
        stalled, last = np.zeros(len(idle)), dict[int, int]()
        for place, strand in enumerate(self.strands):  # who waits before a segment waits for its own last meeting
            if place and strand in last:
                stalled[last[strand]] += idle[place - 1]
            last[strand] = place
        stalled[-1] += idle[-1]
        return stalled

    def causes(self, first: float) -> Floats:
        """The seconds before each meeting by what they are for, as in `WAITS`, if the first rank began at *first*."""
        causes = np.zeros((len(WAITS), len(self.came)))
        causes[0], causes[1] = self.requests, self.experts
        causes[2] = self.computed - self.requests - self.experts
        busy_before = self.started > self.begin
        causes[0 if busy_before else 3, 0] += self.started - first
        return causes


@define(eq=False)
class Rank:
    """A GPU, or several of an engine that are alike: a process that computes the steps that it is given, in order.

    `gpus` are their numbers in the fleet.  Kernels run at its `speed`, relative to others', its host launches a step
    later by `delay` (s), its links have a share `link` of the bandwidth, and it draws `watts` more.  `changes` are what
    it suffers besides, for some time.  Its speed is looked at before each collective if it `varies`.
    """

    env: simpy.Environment
    gpus: Sequence[int]
    changes: Sequence[SlowGpu] = ()
    clock: Clock | None = None
    watts: float = 0.0
    varies: bool = False
    speed: float = field(default=1.0)
    delay: float = field(default=0.0, init=False)
    link: float = field(default=1.0, init=False)
    _parts: deque[Part] = field(factory=deque, init=False)
    _news: simpy.Event | None = field(default=None, init=False)
    _free: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.env.process(self._live())

    def take(self, part: Part) -> None:
        """Compute *part* after all that it was given before."""
        self._parts.append(part)
        if self._news is not None:
            self._news.succeed()
            self._news = None

    def suffers(self, moment: float) -> Iterator[SlowGpu]:
        """What changes it at *moment*."""
        return (change for change in self.changes if change.start <= moment < change.until)

    def slowness_at(self, moment: float) -> float:
        """How many times as long as others' its kernels take that begin at *moment*."""
        return 1.0 / prod((self.speed, *(change.speed for change in self.suffers(moment))))

    def delay_at(self, moment: float) -> float:
        """Seconds by which its host is late with a step whose inputs are prepared at *moment*."""
        return sum((change.delay for change in self.suffers(moment)), self.delay)

    def link_at(self, moment: float) -> float:
        """The share of the others' bandwidth that its links have at *moment*."""
        return prod((self.link, *(change.link for change in self.suffers(moment))))

    def pace(self, step_cost: StepCost, begin: float, setting: Setting) -> ClockScaling:
        """How its SM clock scales a step that begins at *begin* (s)."""
        if self.clock is None:
            return AT_BOOST
        watts = self.watts
        for change in self.suffers(begin):
            setting, watts = setting.within(Setting(clock=change.clock)), watts + change.watts
        if watts:  # what leaks is missing below the limit
            setting = Setting((setting.cap or self.clock.power.limit) - watts, setting.clock)
        return self.clock.pace(step_cost, begin, setting)

    def _live(self) -> Process:
        while True:
            if not self._parts:
                self._news = self.env.event()
                yield self._news
            yield from self._compute(self._parts.popleft())

    def _compute(self, part: Part) -> Process:
        ready = part.started = max(self._free, part.begin)
        began, came, last, varies, slowness = (
            part.began, part.came, len(part.meetings) - 1, self.varies, self.slowness_at(ready))
        before: list[Meeting | None] = [None, None]
        columns = zip(part.own, part.more, part.beside, part.meetings, part.strands, strict=True)
        for own, more, beside, meeting, strand in columns:
            for earlier in (before if strand == 2 else (before[strand],)):
                if earlier is not None:
                    if not earlier.processed:
                        yield earlier
                    ready = max(ready, earlier.end)
            slowness = self.slowness_at(ready) if varies else slowness
            moment = ready + own * slowness + more
            if len(came) == last:
                part.held = max(0.0, part.launched - moment)
                moment += part.held
            began.append(ready)
            came.append(moment)
            meeting.join(moment)
            before[strand % 2], ready = meeting, moment + beside * slowness
        part.slowness = slowness
        yield meeting
        self._free = max(ready, meeting.end)


class DrawnLayers(Protocol):
    """The experts' kernels of one step on each rank, in columns of (layers, ranks), and how full ranks are."""

    @property
    def seconds(self) -> Floats:
        """Seconds at the boost clock."""
        ...

    @property
    def clocked(self) -> Floats:
        """Of the seconds, those that the SM clock changes."""
        ...

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of each rank."""
        ...


class Experts(Protocol):
    """Draws the rows of all experts of a stage's layers, step by step."""

    @property
    def labels(self) -> frozenset[str]:
        """The labels of the kernels that it prices."""
        ...

    def draw(self, tokens: int, parts: int = 1) -> DrawnLayers:
        """The next step, of so many *tokens* on all data ranks together; the layers of each of its *parts*, which are
        micro-batches, one after the other."""
        ...


@define(eq=False)
class Share:
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
    parts: list[Part] = field(factory=list, init=False)
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
class Lane:
    """The ranks of an engine in a stage, in the order of their GPUs, and the `delays` of their hosts in a step."""

    ranks: Sequence[Rank]
    delays: Callable[[float], Sequence[float]]


class Collect(Protocol):
    """Makes meetings for collectives whose links are not those that they were priced with."""

    def __call__(self, collective: Collective, member: int, ranks: int, seconds: float) -> Meeting | None:
        """The meeting of so many *ranks* in a group of engine *member*; None where links are alike and alone, over
        which it lasts *seconds*."""
        ...


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
    lanes: Mapping[int, Lane]
    growing: Callable[[Collective], float]
    note: Callable[[RanksMet], object]
    experts: Experts | None = None
    slices: int = 1
    collect: Collect | None = None
    rearrange: Callable[[], simpy.Event | None] | None = None
    _shares: list[Share] = field(factory=list, init=False)
    _shown: int = field(default=0, init=False)
    _worst: float = field(default=0.0, init=False)
    #: By the identity of blocks, which all steps of a plan share; the blocks are kept, so that no others get their id.
    _programs: dict[int, tuple[Sequence[PricedBlock], RankProgram]] = field(factory=dict, init=False)

    def enter(self, share: Share) -> None:
        """Have the ranks of an engine compute their *share*, whose `done` fires when they have."""
        self._shares.append(share)
        if len(self._shares) < len(self.lanes):
            return
        shares, self._shares = sorted(self._shares, key=lambda share: share.member), []
        if self.rearrange is None or (moved := self.rearrange()) is None:
            self._play(shares)
        else:
            self.env.process(self._play_after(moved, shares))

    def _play_after(self, moved: simpy.Event, shares: Sequence[Share]) -> Process:
        """Play a step once experts have *moved*."""
        yield moved
        for share in shares:
            share.times = LaunchTimes(max(share.times.prepared, self.env.now), share.times.launched)
        self._play(shares)

    def _play(self, shares: Sequence[Share]) -> None:
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
    shares: Sequence[Share]
    _drawn: DrawnLayers | None = field(default=None, init=False)
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

    def _timed(self, share: Share, program: RankProgram) -> Timed:
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

    def _meetings(self, share: Share, program: RankProgram, together: Floats) -> list[list[Meeting | None]]:
        """For each rank of *share*, the meeting at the end of each segment; None where nobody else comes."""
        ranks = len(self.stage.lanes[share.member].ranks)
        if ranks > 1 or self.stage.collect is not None:
            return self._made(share, program, together)
        if program not in self._alike:  # all engines of one rank come to the same meetings, but for the last
            self._alike[program] = self._made(share, program, together)[0]
        return [[*self._alike[program][:-1], share.done]]

    def _made(self, share: Share, program: RankProgram, together: Floats) -> list[list[Meeting | None]]:
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

    def _everybody(self, share: Share, message: KernelCost, key: tuple[int, int], seconds: float) -> Meeting | None:
        """Meeting number `key[0]` of all engines: of their ranks number `key[1]`, or of all (-1)."""
        if key not in self._across:
            number, slot = key
            coming = [len(self.stage.lanes[other.member].ranks) if slot < 0 else 1
                      for other, program in zip(self.shares, self._programs, strict=True) if program.across > number]
            self._across[key] = self._meeting(share, message, sum(coming), seconds)
        return self._across[key]

    def _meeting(self, share: Share, message: KernelCost, ranks: int, seconds: float) -> Meeting | None:
        if self.stage.collect is not None:
            made = self.stage.collect(share.collectives()[message.label], share.member, ranks, seconds)
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
        busy = np.array([part.computed.sum() + (part.free - part.came).sum() for part in parts])
        end = max(share.done.end for share in self.shares)
        waiting = waits.sum() / len(parts) / (end - first) if end > first else 0.0
        timeline = self._timeline(parts, row) if self.stage.shows(waiting) else None
        return RanksMet(time=end, engine=self.shares[0].member, stage=self.stage.number, start=first, gpus=gpus,
                        busy=busy[row], waits=waits[:, row], timeline=timeline)

    def _timeline(self, parts: Sequence[Part], row: Ints) -> RankTimeline:
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

    timed: Timed
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
             besides: Floats, meetings: Sequence[Meeting | None]) -> Part:
        """The part of a rank whose clock makes kernels *pace* times as long, with so many seconds of *experts*, a share
        *besides* of them beside a collective, and with a host that is late by *delay*."""
        own = self.timed.at_boost + pace * self.timed.clocked
        beside = self.timed.beside + pace * self.timed.beside_clocked
        at_boost = np.zeros(len(self.kept))
        if experts is not None:
            own, at_boost = own + (1 - besides) * experts[1], self._joined((1 - besides) * experts[0])
            beside = beside + besides * experts[1]
        return Part(times.prepared + delay, times.launched + delay, self._joined(own).tolist(), self._more,
                    beside[self.kept].tolist(), [one for one in meetings if one is not None], self.strands,
                    self._requests, at_boost)


#: Meetings one after the other of the same ranks: the rows of these, and which of their own each meeting is to them:
#: (ranks, meetings).
Run = tuple[list[Meeting], Ints, Ints]


def waits_of(parts: Sequence[Part]) -> Floats:
    """The seconds that each of the ranks waited in a step, by cause as in `WAITS`: (causes, ranks).

    A rank waits for the last one, because that took longer, for each cause, since both left the same meeting.  Whoever
    met the last one in between was as late for the same causes.  A rank that computes meanwhile does not wait.
    """
    first, most = min(part.started for part in parts), max(len(part.came) for part in parts)
    beside = any(any(part.beside) or part.held or 1 in part.strands for part in parts)
    causes, (came, stalled, free, held) = np.zeros((len(WAITS), len(parts), most)), np.zeros((4, len(parts), most))
    for row, part in enumerate(parts):
        size = len(part.came)
        causes[:, row, :size], came[row, :size] = part.causes(first), part.came
        if beside:
            stalled[row, :size], free[row, :size], held[row, size - 1] = part.stalled, part.free, part.held
    waits, since = np.zeros((2, len(WAITS), len(parts)))
    for meetings, rows, places in _runs(parts, beside):
        here = rows[:, None], places
        lasted = causes[:, *here]
        lasted[:, :, 0] += since[:, rows]
        comer = came[here].argmax(axis=0)
        last = np.take_along_axis(lasted, comer[None, None], axis=1)
        waited, since[:, rows] = last - lasted, last[:, :, -1]
        if beside:
            waited = _scaled(waited, np.minimum(came[here].max(axis=0) - came[here], stalled[here]))
            if held[here][comer[-1], -1]:  # its host is late with the launches
                waited[:, :, -1] = np.eye(len(WAITS))[3][:, None] * waited[:, :, -1].sum(axis=0)
            since[:, rows] += _tails(lasted[:, :, -1], np.maximum(free[here][:, -1] - meetings[-1].end, 0.0))
        waits[:, rows] += waited.sum(axis=2)
        waits[-1, rows] += sum(meeting.late for meeting in meetings)
    return waits


def _scaled(waited: Floats, seconds: Floats) -> Floats:
    """The causes of waits, (causes, ranks, meetings), such that they add up to *seconds*."""
    lasted = waited.sum(axis=0)
    scaled: Floats = waited * np.divide(seconds, lasted, out=np.zeros_like(seconds), where=lasted > 0)
    scaled[2] += np.where(lasted > 0, 0.0, seconds)
    return scaled


def _tails(lasted: Floats, tails: Floats) -> Floats:
    """The causes, (causes, ranks), for which ranks go on so many seconds after a meeting: those for which they came
    late, or that they are slow at what runs beside it."""
    tails = tails - tails.min()
    late = lasted - lasted.min(axis=1, keepdims=True)
    total = late.sum(axis=0)
    causes: Floats = late * np.divide(tails, total, out=np.zeros_like(tails), where=total > 0)
    causes[2] += np.where(total > 0, 0.0, tails)
    return causes


def _runs(parts: Sequence[Part], one_by_one: bool) -> Iterator[Run]:
    """The meetings of *parts* in the order in which they began."""
    met: dict[Meeting, list[tuple[int, int]]] = {}
    shared, every = parts[0].meetings[:-1], np.arange(len(parts))
    begin = len(shared) if all(part.meetings[:-1] == shared for part in parts) else 0
    if begin and not one_by_one:  # nobody meets only some
        yield list(shared), every, np.broadcast_to(np.arange(begin), (len(parts), begin))
    for place, meeting in enumerate(shared if begin and one_by_one else ()):
        yield [meeting], every, np.full((len(parts), 1), place)
    for row, part in enumerate(parts):
        for place, meeting in enumerate(part.meetings[begin:], begin):
            met.setdefault(meeting, []).append((row, place))
    for meeting in sorted(met, key=lambda meeting: meeting.latest):
        rows, places = np.array(met[meeting], np.intp).T
        yield [meeting], rows, places[:, None]


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

    def _share(self, stage: RankStage, timer: Timer, sent: "Sent") -> Share:
        number, batch, tokens = stage.number, sent.batch, sent.tokens_by_rank
        prepared = max(self.env.now, sent.launches[number].prepared)
        return Share(self.member, sent.step_costs[number], LaunchTimes(prepared, sent.launches[number].launched),
                     sent.settings[number] if sent.settings else FREE, timer.everywhere(batch, tokens),
                     lambda: {cost.label: launch for launch, cost, _ in timer.launches(batch, tokens)
                              if isinstance(launch, Collective)},
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
