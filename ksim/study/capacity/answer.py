"""Set-ups against each other, and the answer that follows for each.

`contest` spends runs where they decide which set-up is the best; a `Standing` is the answer for one of them.
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil, inf

from attrs import evolve, field, frozen

from ksim.foundation.errors import KsimError, WorkerLost
from ksim.results.numbers import NUMBERS, OF_COST
from ksim.study.capacity.judge import KEPT, Judge, Light, RateAnswer, SetUp, fewest
from ksim.study.capacity.search import RatePoint
from ksim.study.capacity.targets import Target
from ksim.views.wording import number

#: What a run costs, which compares set-ups, by the titles of the numbers: per output token, and per token of prompts
#: and outputs together.
COSTS = {key: NUMBERS[key].title for key in OF_COST}


@frozen
class Standing:
    """The answer for a set-up: with `replicas` it carries the rate that was asked for, or its own highest rate.

    `point` is how it did at that rate.  `answer` is the search for the highest rate of so many replicas, where there
    was one, and `around` it are further points of a curve.  `problem` says why it has neither.
    """

    setup: SetUp
    replicas: int = 0
    point: RatePoint | None = field(default=None, repr=False)
    answer: RateAnswer | None = field(default=None, repr=False)
    around: Sequence[RatePoint] = field(default=(), repr=False)
    light: Light | None = field(default=None, repr=False)
    problem: str = ""

    @property
    def stands(self) -> bool:
        """Whether it keeps the targets."""
        return not self.problem and self.point is not None

    @property
    def gpus(self) -> int:
        return self.replicas * self.setup.gpus

    def cost(self, key: str) -> float | None:
        """One of `COSTS` at the rate; None of dollars where no price is stated."""
        return self.point.numbers.get(key) if self.point else None

    @property
    def dollars(self) -> float | None:
        """Dollars per million tokens, of prompts and outputs together; None where no price is stated."""
        return self.cost("usd_per_million_tokens")

    @property
    def joules(self) -> float | None:
        """Joules per million tokens, of prompts and outputs together."""
        return self.cost("joules_per_million_tokens")

    @property
    def rate_per_gpu(self) -> float | None:
        """The highest rate over the GPUs that carry it, in requests/s."""
        return self.answer.rate / self.gpus if self.answer and self.gpus else None

    @property
    def binds(self) -> Target | None:
        """The target that a higher rate would miss first."""
        if self.answer:
            return self.answer.binds
        point = self.point
        return max(point.values, key=lambda target: point.values[target][0] / target.limit) if point else None

    @property
    def points(self) -> list[RatePoint]:
        """The rates that were tried with so many replicas, in ascending order."""
        tried = [*(self.answer.points if self.answer else ()), *self.around, *([self.point] if self.point else [])]
        best = {point.rate: point for point in sorted(tried, key=lambda point: point.replications)}
        return [best[rate] for rate in sorted(best)]

    def gpus_between(self, rate: float) -> tuple[int, int | None] | None:
        """The interval of the GPUs that carry *rate*, None without a search; its upper end is None where it has none.

        Replicas are as many as *rate* over what one carries: the highest rate's share of each.
        """
        if self.answer is None:
            return None
        low, high = (self._needed(rate, end) for end in (self.answer.interval.high, self.answer.interval.low))
        return (int(min(low, self.replicas)) * self.setup.gpus,
                None if high == inf else int(max(high, self.replicas)) * self.setup.gpus)

    def _needed(self, rate: float, carried: float) -> float:
        """The number of replicas that carry *rate*, if those that there are carry *carried*."""
        return max(1, ceil(self.replicas * rate / carried - 1e-9)) if carried > 0 else inf


def ranked(standings: Sequence[Standing], rate: float | None) -> list[Standing]:
    """*standings*, the best first: fewest dollars where all have prices, else fewest GPUs, then joules.

    Without a *rate*, it is the highest rate per GPU in place of the fewest GPUs.  Those that do not keep the targets
    come last.
    """
    standing = [one for one in standings if one.stands]
    priced = all(one.dollars is not None for one in standing)
    return sorted(standing, key=lambda one: _cost(one, rate, priced)) + [one for one in standings if not one.stands]


def _cost(one: Standing, rate: float | None, priced: bool) -> tuple[float, ...]:
    """A key to sort set-ups by: less is better."""
    spread = float(one.gpus) if rate is not None else -(one.rate_per_gpu or 0.0)
    dollars, joules = (_shared(one, f"{key}_per_million_tokens") for key in ("usd", "joules"))
    return (0.0 if dollars is None else dollars, spread, inf if joules is None else joules)[not priced:]


def _shared(one: Standing, key: str) -> float | None:
    """The cost in the first replication, which all set-ups have in common, however many more each needed."""
    return one.point.first.get(key, one.cost(key)) if one.point else None


def closest(standings: Sequence[Standing]) -> Standing | None:
    """Of set-ups that cannot keep the targets, the one whose worst latency is closest to its limit at light load."""
    lit = [one for one in standings if one.light is not None]
    return min(lit, key=lambda one: one.light.strain(one.light.worst) if one.light else inf, default=None)


#: The rates that complete the curve of the best set-up, as shares of its highest one.
_AROUND = (0.5, 0.75, 1.15, 1.35)
#: Rates that differ by less than this share are close.
_CLOSE = 0.08


def _silent(_: str) -> None:
    pass


def contest(judge: Judge, made: Sequence[SetUp], rate: float | None,
            say: Callable[[str], None] = _silent) -> list[Standing]:
    """Compare set-ups *made* at *rate*, or each at its highest rate; the best comes first.

    Set-ups that miss a target with one request at a time are not run under load.  At a *rate*, only the best is
    searched for its highest rate; without one, all are, and the model's errors are drawn for the best.
    """
    say("one request at a time")
    order = ranked([_stand(judge, one, flood, rate, say) for one, flood in _begun(judge, made)], rate)
    best = order[0]
    if not best.stands:
        return order
    say(f"interval of {best.setup.name}")
    near = best.answer.rate if best.answer else rate or 1.0
    answer = judge.highest(best.setup, best.replicas, near, errors=True)
    best = evolve(best, answer=answer)
    say(f"curve of {best.setup.name}")
    return [evolve(best, around=judge.points(best.setup, best.replicas, _around(best, answer.rate))), *order[1:]]


def _around(best: Standing, highest: float) -> list[float]:
    """Rates that complete the curve of *best*, none of which is close to one that was tried."""
    tried = [point.rate for point in best.points]
    return [rate for rate in (share * highest for share in _AROUND)
            if all(abs(rate / other - 1) > _CLOSE for other in tried)]


def _begun(judge: Judge, made: Sequence[SetUp]) -> Iterator[tuple[Standing, float]]:
    """Each set-up with one request at a time, and its throughput under a flood."""
    begun = iter(judge.begin([setup for setup in made if not setup.problem]))
    for setup in made:
        first = setup.problem or next(begun)
        if isinstance(first, str):
            yield Standing(setup, problem=first), 0.0
        else:
            light, flood = first
            yield Standing(setup, light=light, problem=unreached(light) if light.missed else ""), flood


def _stand(judge: Judge, begun: Standing, flood: float, rate: float | None, say: Callable[[str], None]) -> Standing:
    if begun.problem:
        return begun
    say(begun.setup.name)
    try:
        return _highest(judge, begun, flood) if rate is None else _fewest(judge, begun, flood, rate)
    except WorkerLost:  # which is no answer
        raise
    except KsimError as error:
        return evolve(begun, problem=str(error))


def _fewest(judge: Judge, begun: Standing, flood: float, rate: float) -> Standing:
    assert begun.light, "a set-up is run under load after it was run without"
    sized = fewest(judge, begun.setup, rate, begun.light, flood)
    if sized.replicas is None:
        return evolve(begun, point=sized.point, problem=f"no number of replicas carries {rate:g} requests/s within the"
                                                        f" targets")
    return evolve(begun, replicas=sized.replicas, point=sized.point)


def _highest(judge: Judge, begun: Standing, flood: float) -> Standing:
    answer = judge.highest(begun.setup, 1, KEPT * flood, errors=False)
    nearest = min(answer.points, key=lambda point: abs(point.rate - answer.rate))
    return evolve(begun, replicas=1, point=nearest, answer=answer)


def unreached(light: Light) -> str:
    """Which target is out of reach, by how much, and what holds it up."""
    target = light.worst
    bound = light.bounds.get(target.metric, "")
    return (f"{named(target)} is {milliseconds(light.values[target])} with one request at a time, and may be"
            f" {milliseconds(target.limit)}{': ' + bound[0].lower() + bound[1:].rstrip('.') if bound else ''}")


def named(target: Target) -> str:
    """Such as "TTFT p99"."""
    return f"{target.metric.upper()} {target.statistic}"


def milliseconds(seconds: float) -> str:
    return f"{number(1e3 * seconds)} ms" if seconds < 1 else f"{number(seconds)} s"
