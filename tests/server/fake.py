"""Fleets that are played against a wall clock that tests set."""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from attrs import define, evolve, field

from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.scenario.scenario import Scenario
from ksim.server.live import Handle, Live
from ksim.server.recording import LiveRecording
from ksim.simulation.fleet import Fleet


@define(eq=False)
class Wall:
    """A clock that shows what it is set to."""

    time: float = 0.0

    def __call__(self) -> float:
        return self.time


@define(eq=False)
class Ear:
    """A listener that writes down what it hears, and checks that it hears it in order."""

    tokens_heard: dict[int, int] = field(factory=dict)
    times: list[float] = field(factory=list)
    end: tuple[str, str | float] | None = None

    def tokens(self, count: int, time: float, sequence: int) -> None:
        assert self.end is None and (not self.times or time >= self.times[-1])
        self.tokens_heard[sequence] = self.tokens_heard.get(sequence, 0) + count
        self.times.append(time)

    def finished(self, reason: str, time: float) -> None:
        assert self.end is None
        self.end = reason, time

    def refused(self, why: str) -> None:
        assert self.end is None and not self.times
        self.end = "refused", why


@define(eq=False)
class FakeLive:
    """Plays *scenario* at the speed of its events."""

    scenario: dict[str, Any]
    kept: Log = field(factory=Log)
    tells: bool = False
    wall: Wall = field(factory=Wall, init=False)
    live: Live = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.live = Live(Fleet.of(Scenario.of(self.scenario)), wall=self.wall, kept=self.kept, tells=self.tells)

    @property
    def time(self) -> float:
        return self.wall.time

    def until(self, moment: float) -> None:
        """Let the wall clock show all moments at which something happens, up to *moment*.

        It shows none while a request waits to be read: simulated time does not pass.
        """
        while (due := self.live.env.due) <= moment and due < inf and self.live.turns.oldest is None:
            self.wall.time = max(self.wall.time, due)
            self.live.advance()
        if moment < inf:
            self.wall.time = max(self.wall.time, moment)

    def play(self, requests: Iterable[Request], look: Callable[[], object] = lambda: None) -> list[Ear]:
        """Submit *requests* at their arrivals, and play to the end; *look* is called now and then."""
        heard = list[Ear]()
        for request in requests:
            self.until(request.arrival)
            heard.append(Ear())
            self.submit(request, heard[-1])
            look()
        self.until(inf)
        return heard

    def submit(self, request: Request, ear: Ear) -> Handle:
        return self.live.submit(request, ear)


@define(eq=False)
class Played:
    """A fleet that was played live: its log, and what each client heard."""

    live: Live
    log: Log
    handles: list[Handle]
    ears: list[Ear]
    gone: dict[int, float] = field(factory=dict)  # when clients hung up, by the numbers of their requests

    @property
    def requests(self) -> list[Request]:
        """The requests with the arrivals that they got, and when their clients hung up."""
        asked = [handle.request for handle in self.handles]
        return [evolve(request, aborted=self.gone[request.id] - request.arrival) if request.id in self.gone else request
                for request in asked]


def played(fleet: Fleet, requests: Iterable[Request], aborts: Mapping[int, float] | None = None,
           speed: float = 1.0, tick: float = 0.003, recorded: LiveRecording | None = None,
           parsing: float = 0.0) -> Played:
    """Send *requests* to *fleet* at their arrivals, and let some be *aborts*: so many seconds after they were sent.

    The clock goes on by *tick* at most between looks at what is due.  Each request is sent after so many seconds of
    *parsing*.
    """
    wall, log = Wall(100.0), Log()
    live = Live(fleet, speed=speed, wall=wall, kept=recorded.sink if recorded else log)
    result = Played(live, log, [], [])
    live.aborted = lambda handle, moment: result.gone.setdefault(handle.request.id, moment)
    if recorded:
        recorded.attach(live)
    gone: list[tuple[float, Handle]] = []
    for request in requests:
        came = max(100.0 + request.arrival / speed, wall.time - parsing)
        pass_time(live, wall, came + parsing, tick, gone)
        ear = Ear()
        result.ears.append(ear)
        result.handles.append(live.submit(request, ear, came))
        if aborts and (place := len(result.handles) - 1) in aborts:
            gone.append((wall.time + aborts[place] / speed, result.handles[-1]))
            gone.sort(key=lambda abort: abort[0])
    while live.handles or gone:
        assert wall.time < 3000, (live.handles, [e.number for e in live.engines if e._done])
        pass_time(live, wall, wall.time + 50 * tick, tick, gone)
    return result


def pass_time(live: Live, wall: Wall, until: float, tick: float, gone: list[tuple[float, Handle]]) -> None:
    """Let the clock go on, and clients hang up when it is time."""
    while wall.time < until:
        wall.time = min(wall.time + tick, until)
        while gone and gone[0][0] <= wall.time:
            live.abort(gone.pop(0)[1])
        while live.advance() <= 0:
            pass


def values(text: bytes) -> dict[str, float]:
    """The samples of an exposition by their names, added up over labels."""
    lines = (line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#"))
    samples: dict[str, float] = {}
    for name, _, value in lines:
        key = name.partition("{")[0]
        samples[key] = samples.get(key, 0.0) + float(value)
    return samples
