"""A judge that knows the answers: each replica of a set-up carries so many requests/s."""

from collections.abc import Callable, Sequence

import numpy as np
from attrs import define, field

from ksim.foundation.errors import ConfigError
from ksim.study.capacity.judge import Light, RateAnswer, SetUp
from ksim.study.capacity.search import RatePoint
from ksim.study.capacity.targets import Interval, Target

TTFT, TPOT = Target.parse("ttft:p99:1s"), Target.parse("tpot:p99:50ms")


def point(rate: float, carried: float, dollars: float | None = None, joules: float = 100.0, sure: bool = True,
          replications: int = 4) -> RatePoint:
    """How a set-up does at *rate* that carries so much: latencies rise with the load, and miss their limits above it.
    """
    load = rate / carried
    near = Interval(0.9 * load, 1.1 * load)
    numbers = {"joules_per_million_tokens": joules} | ({} if dollars is None else {"usd_per_million_tokens": dollars})
    attained = (1.0 - 0.01 * load, Interval(0.9, 1.0))
    return RatePoint(
        rate=rate, replications=replications, hopeless=0, saturated=0, attainment=dict.fromkeys((TTFT, TPOT), attained),
        values={TTFT: (0.5 * load, near), TPOT: (0.05 * load, near)}, goodput=(min(rate, carried), Interval(0, rate)),
        numbers=numbers, meets=load <= 1 if sure else None,
        excess=dict.fromkeys((TTFT, TPOT), (load, near)),
        multiples=dict.fromkeys((TTFT, TPOT), np.full(replications, load)))


@define
class Knows:
    """Each replica of set-up *name* carries ``carried[name]`` requests/s, out of sight of any run.

    `prices` and `joules` are those of a million tokens, per GPU that there is; `spread` is the interval of a rate over
    it, and `flooded` the throughput under a flood.  `asked` lists the questions: (set-up, replicas, rate).
    """

    carried: dict[str, float]
    prices: dict[str, float] = field(factory=dict)
    joules: dict[str, float] = field(factory=dict)
    lights: dict[str, Light] = field(factory=dict)
    spread: tuple[float, float] = (0.9, 1.1)
    flooded: float = 1.4
    sure: Callable[[int], bool] = lambda replicas: True
    asked: list[tuple[str, int, float]] = field(factory=list)

    def begin(self, made: Sequence[SetUp]) -> list[tuple[Light, float]]:
        return [(self.lights.get(setup.name, light(0.1, 0.01)), self.carried[setup.name] * self.flooded)
                for setup in made]

    def decide(self, setup: SetUp, replicas: int, rate: float, least: int = 2, requests: int = 0) -> RatePoint:
        self.asked.append((setup.name, replicas, rate))
        price = self.prices.get(setup.name)
        return point(rate, replicas * self.carried[setup.name], None if price is None else price * replicas,
                     self.joules.get(setup.name, 100.0), self.sure(replicas))

    def points(self, setup: SetUp, replicas: int, rates: Sequence[float]) -> list[RatePoint]:
        return [point(rate, replicas * self.carried[setup.name], replications=3) for rate in rates]

    def highest(self, setup: SetUp, replicas: int, near: float, errors: bool) -> RateAnswer:
        carried = replicas * self.carried[setup.name]
        if carried <= 0:
            raise ConfigError("--slo", "kept at no rate")
        low, high = (carried * share for share in self.spread)
        price = self.prices.get(setup.name)
        points = tuple(point(share * carried, carried, price, self.joules.get(setup.name, 100.0), sure=False)
                       for share in (0.5, 0.9, 1.0, 1.2))
        whole = Interval(low, high)
        return RateAnswer(carried, whole, whole, whole if errors else None, 0.9, TPOT, points,
                          ("the trace is resampled in blocks",))


def light(ttft: float, tpot: float, missed: Sequence[Target] = (), seconds: float = 2.0) -> Light:
    """A set-up with one request at a time."""
    return Light({TTFT: ttft, TPOT: tpot}, tuple(missed),
                 {"tpot": "Decode steps are memory-bound for 87 % of their GPU time: they wait for weights."}, seconds)


def named(name: str, gpus: int = 1, problem: str = "") -> SetUp:
    """A set-up without a scenario, which only those who know need not have."""
    return SetUp(name, {"gpu": name}, None, gpus, problem)
