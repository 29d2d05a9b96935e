"""Ranks as SimPy processes: every GPU computes its own kernels, and meets others in collectives.

A `Rank` is a process that lives as long as the run.  It takes one step after another: it computes until a collective,
says when it will be there, and goes on when the collective ends.  A collective begins when the last of its ranks has
come, and ends for all together.  So a slow GPU, a busy host or a full expert delays just those that meet it, and what
they wait for can be told.  Between two collectives, a rank has the speed with which it begins.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import simpy
from attrs import define, field
from numpy.typing import NDArray

from ksim.cost.energy import Clock, Setting
from ksim.flow.costs import AT_BOOST, ClockScaling
from ksim.flow.events import WAITS
from ksim.flow.steps import StepCost
from ksim.specs.hardware import SlowGpu

__all__ = ["Meeting", "Process", "Rank", "RankWork", "waits_of"]

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


@define(eq=False, slots=False)
class RankWork:
    """What one rank does in a step, from `begin` on: it computes `own` seconds at full speed, lets `more` pass in
    collectives of its like, and joins a meeting, again and again.

    Each meeting is of a micro-batch, `strands`: that one's next segment waits for it, the other's does not.  Where they
    change over, meetings are exchanges of experts' tokens, which the rank sends one after the other.  The rank
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

    @cached_property
    def computed(self) -> Floats:
        """Seconds of its kernels before each meeting, once it is done."""
        computed: Floats = np.array(self.came) - self.began - self.more
        computed[-1] -= self.held
        return computed

    @property
    def busy(self) -> float:
        """Seconds of all of its kernels."""
        return float(self.computed.sum()) + self.slowness * sum(self.beside)

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
    _parts: deque[RankWork] = field(factory=deque, init=False)
    _news: simpy.Event | None = field(default=None, init=False)
    _free: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.env.process(self._live())

    def take(self, part: RankWork) -> None:
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
        return prod((self.link, *(change.link for change in self.suffers(moment)))) if self.changes else self.link

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

    def _compute(self, part: RankWork) -> Process:
        ready = part.started = max(self._free, part.begin)
        began, came, last, varies, slowness = (
            part.began, part.came, len(part.meetings) - 1, self.varies, self.slowness_at(ready))
        before: list[Meeting | None] = [None, None]
        columns = zip(part.own, part.more, part.beside, part.meetings, pairwise([*part.strands, 2]), strict=True)
        for own, more, beside, meeting, (strand, following) in columns:
            for earlier in before if strand == 2 else before[strand:strand + 1]:
                if earlier is not None:
                    if earlier.callbacks is not None:  # it has not ended
                        yield earlier
                    ready = max(ready, earlier.end)
            if varies:
                slowness = self.slowness_at(ready)
            moment = ready + own * slowness + more
            if len(came) == last:
                part.held = max(0.0, part.launched - moment)
                moment += part.held
            began.append(ready)
            came.append(moment)
            sent = moment
            if strand != following and (exchange := before[1 - strand]) is not None:  # one is sent after the other
                if exchange.callbacks is not None:
                    yield exchange
                sent = max(moment, exchange.end)
            meeting.join(sent)
            before[strand % 2], ready = meeting, moment + beside * slowness
        part.slowness = slowness
        yield meeting
        self._free = max(ready, meeting.end)


#: Meetings one after the other of the same ranks: the rows of these, and which of their own each meeting is to them:
#: (ranks, meetings).
Run = tuple[list[Meeting], Ints, Ints]


def waits_of(parts: Sequence[RankWork]) -> Floats:
    """The seconds that each of the ranks waited in a step, by cause as in `WAITS`: (causes, ranks).

    A rank waits for the last one, because that took longer, for each cause, since both left the same meeting.  Whoever
    met the last one in between was as late for the same causes.  A rank that computes meanwhile does not wait.
    """
    first, most = min(part.started for part in parts), max(len(part.came) for part in parts)
    causes, (came, stalled, free, held) = np.zeros((len(WAITS), len(parts), most)), np.zeros((4, len(parts), most))
    for row, part in enumerate(parts):
        size = len(part.came)
        causes[:, row, :size], came[row, :size], held[row, size - 1] = part.causes(first), part.came, part.held
    if uneven := any(any(part.beside) or part.held or 1 in part.strands for part in parts):
        for row, part in enumerate(parts):
            stalled[row, :len(part.came)], free[row, :len(part.came)] = part.stalled, part.free
    waits, since = np.zeros((2, len(WAITS), len(parts)))
    for meetings, rows, places in _runs(parts, uneven):
        here = rows[:, None], places
        lasted, comer = causes[:, *here], came[here].argmax(axis=0)
        lasted[:, :, 0] += since[:, rows]
        last = np.take_along_axis(lasted, comer[None, None], axis=1)
        waited, since[:, rows] = last - lasted, last[:, :, -1]
        if uneven:
            waited = _scaled(waited, np.minimum(came[here].max(axis=0) - came[here], stalled[here]))
            since[:, rows] += _tails(lasted[:, :, -1], np.maximum(free[here][:, -1] - meetings[-1].end, 0.0))
            if held[here][comer[-1], -1]:  # its host is late with the launches
                waited[:, :, -1] = np.eye(len(WAITS))[3][:, None] * waited[:, :, -1].sum(axis=0)
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


def _runs(parts: Sequence[RankWork], one_by_one: bool) -> Iterator[Run]:
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
