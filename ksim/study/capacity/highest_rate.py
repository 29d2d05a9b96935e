"""The highest rate that keeps all targets, and how sure it is."""

from math import exp, hypot, inf, log

from attrs import frozen

from ksim.simulation.scenario import Scenario
from ksim.study.capacity.estimate import RatePoint
from ksim.study.capacity.intervals import Interval
from ksim.study.capacity.search import Search
from ksim.study.capacity.targets import Target
from ksim.study.capacity.trial import Plan
from ksim.study.workers import Workers

#: Replications that are added at a time, after the first two.
_MORE = 4


@frozen
class RateAnswer:
    """The highest `rate`, in requests/s, that keeps the targets, and the `interval` that holds it with the plan's
    confidence.

    `traffic` is what chance in the traffic leaves open, `model` what the errors of the latency model do; `model_share`
    is the model's part of the variance of both.  `binds` is the target that is missed first, None where it is that the
    backlog grows.  `points` are all rates that were tried, in ascending order.
    """

    rate: float
    interval: Interval
    traffic: Interval
    model: Interval | None
    model_share: float
    binds: Target | None
    points: tuple[RatePoint, ...]
    notes: tuple[str, ...] = ()


def highest_rate(scenario: Scenario, plan: Plan, workers: Workers, near: float | None = None) -> RateAnswer:
    """The highest rate at which *scenario*, as it is, keeps the targets of *plan*; *near* says where to begin.

    Raises ConfigError where it keeps them at no rate, however low.
    """
    search = Search.of(scenario, plan, workers)
    curves = search.refine(*search.bracket(near))
    rate = curves.crossing() or curves.rates[0]
    traffic = curves.interval(plan.confidence, search.traffic.own_spread)
    model = search.model(rate) if plan.model_errors else None
    interval, share = together(rate, traffic, model)
    return RateAnswer(rate=rate, interval=interval, traffic=traffic, model=model, model_share=share,
                      binds=search.binding(rate), points=search.points(), notes=search.notes())


def decide(scenario: Scenario, rate: float, plan: Plan, workers: Workers) -> RatePoint:
    """Whether *scenario* keeps the targets of *plan* at *rate*; more replications are played as long as that is open.
    """
    search, count = Search.of(scenario, plan, workers), _MORE
    point = search.point(rate, min(2, plan.replications))
    while point.meets is None and point.replications < plan.replications:
        point = search.point(rate, min(count, plan.replications))
        count += _MORE
    return point


def together(rate: float, traffic: Interval, model: Interval | None) -> tuple[Interval, float]:
    """The interval of both, and the model's share: in logarithms of rates, independent errors add up as squares."""
    if model is None:
        return traffic, 0.0
    below, above = ((_reach(rate, traffic.low), _reach(rate, model.low)),
                    (_reach(rate, traffic.high), _reach(rate, model.high)))
    whole = sum(one**2 + other**2 for one, other in (below, above))
    share = (below[1] ** 2 + above[1] ** 2) / whole if whole else 0.0
    return Interval(rate * exp(-hypot(*below)), rate * exp(hypot(*above))), share


def _reach(rate: float, end: float) -> float:
    return abs(log(end / rate)) if 0 < end < inf else inf
