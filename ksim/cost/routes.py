"""Routes: what carrying out a collective one way takes, round by round."""

from itertools import pairwise
from math import inf

from attrs import evolve, field, frozen

#: Messages of any size.
ANY = (0.0, inf)


@frozen
class Hop:
    """A transfer once its protocol is known: seconds to start, and per byte of the message.

    `least` is what a byte takes where links reach their peak; `share` how much of the message its source sends in the
    round.
    """

    source: int
    target: int
    latency: float
    per_byte: float
    least: float = 0.0
    share: float = 0.0

    def seconds(self, size: float) -> float:
        return self.latency + size * self.per_byte

    def within(self, rate: float) -> "Hop":
        """The same where its source sends *rate* bytes a second at most."""
        return evolve(self, per_byte=max(self.per_byte, self.share / rate))


@frozen
class Route:
    """One way to carry out a collective: an algorithm's rounds over one protocol.

    `sent` is how often a rank sends the message's size in all, on average, and `routed` how often of that it leaves its
    node; `window` the least message that is sent
    so, and the first that is not; `reach` the ends of the 90 % interval of its seconds, as factors.
    """

    algorithm: str
    protocol: str
    start: float
    rounds: tuple[tuple[Hop, ...], ...]
    sent: float = 0.0
    routed: float = 0.0
    window: tuple[float, float] = ANY
    reach: tuple[float, float] = (1.0, 1.0)
    #: Where all ranks go through the rounds in step: seconds to start, and per byte.
    even: tuple[float, float] | None = field(init=False)

    @even.default
    def _terms(self) -> tuple[float, float] | None:
        alike = all(len({(hop.latency, hop.per_byte) for hop in hops}) == 1 for hops in self.rounds)
        # Whoever sends had part in the round before, so nobody is ahead.
        in_step = all({hop.source for hop in hops} <= {rank for hop in before for rank in (hop.source, hop.target)}
                      for before, hops in pairwise(self.rounds))
        if not (alike and in_step):
            return None
        return sum(hops[0].latency for hops in self.rounds), sum(hops[0].per_byte for hops in self.rounds)

    def seconds(self, size: float) -> float:
        """From the moment all ranks are there until the last has what it was promised."""
        if self.even is not None:
            return self.start + self.even[0] + size * self.even[1]
        ready: dict[int, float] = {}
        for hops in self.rounds:
            through = dict(ready)
            for hop in hops:
                end = ready.get(hop.source, 0.0) + hop.seconds(size)
                for rank in (hop.source, hop.target):
                    through[rank] = max(through.get(rank, 0.0), end)
            ready = through
        return self.start + max(ready.values(), default=0.0)

    def within(self, rate: float) -> "Route":
        """The same where a rank sends *rate* bytes a second at most."""
        return evolve(self, rounds=tuple(tuple(hop.within(rate) for hop in hops) for hops in self.rounds))

    def least(self, size: float) -> float:
        """What its rounds take where nothing has to start and links reach their peak."""
        return size * sum(max((hop.least for hop in hops), default=0.0) for hops in self.rounds)
