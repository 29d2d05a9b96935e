"""A live fleet whose wall clock shows what a test says."""

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from attrs import define, field

from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.server.live.live import Handle, Live
from ksim.simulation.fleet import Fleet
from ksim.simulation.scenario import Scenario


@define(eq=False)
class Heard:
    """Notes what a request's listener hears."""

    tokens_at: list[tuple[float, int, int]] = field(factory=list)
    reason: str = ""
    ended: float = inf

    def tokens(self, count: int, time: float, sequence: int) -> None:
        self.tokens_at.append((time, count, sequence))

    def finished(self, reason: str, time: float) -> None:
        self.reason, self.ended = reason, time

    def refused(self, why: str) -> None:
        pass


@define(eq=False)
class FakeLive:
    """Plays *scenario* at the speed of its events."""

    scenario: dict[str, Any]
    time: float = 0.0
    kept: Log = field(factory=Log)
    tells: bool = False
    live: Live = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.live = Live(Fleet.of(Scenario.of(self.scenario)), wall=lambda: self.time, kept=self.kept,
                         tells=self.tells)

    def until(self, moment: float) -> None:
        """Let the wall clock show all moments at which something happens, up to *moment*."""
        while (due := self.live.env.due) <= moment and due < inf:
            self.time = max(self.time, due)
            self.live.advance()
        if moment < inf:
            self.time = max(self.time, moment)

    def play(self, requests: Iterable[Request], look: Callable[[], object] = lambda: None) -> list[Heard]:
        """Submit *requests* at their arrivals, and play to the end; *look* is called now and then."""
        heard = list[Heard]()
        for request in requests:
            self.until(request.arrival)
            heard.append(Heard())
            self.submit(request, heard[-1])
            look()
        self.until(inf)
        return heard

    def submit(self, request: Request, heard: Heard) -> Handle:
        return self.live.submit(request, heard)


def values(text: bytes) -> dict[str, float]:
    """The samples of an exposition by their names, added up over labels."""
    lines = (line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#"))
    samples: dict[str, float] = {}
    for name, _, value in lines:
        key = name.partition("{")[0]
        samples[key] = samples.get(key, 0.0) + float(value)
    return samples
