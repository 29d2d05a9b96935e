"""Set-ups against each other: runs are spent where they decide which is the best."""

from collections.abc import Callable, Iterator, Sequence

from attrs import evolve

from ksim.foundation.errors import KsimError, WorkerLost
from ksim.report.wording import number
from ksim.study.capacity.answer import Standing, ranked
from ksim.study.capacity.fewest import KEPT, fewest
from ksim.study.capacity.judge import Judge
from ksim.study.capacity.light import Light
from ksim.study.capacity.setups import SetUp
from ksim.study.capacity.targets import Target

#: The rates that complete the curve of the best set-up, as shares of its highest one.
_AROUND = (0.5, 0.75, 1.15, 1.35)
#: Rates that differ by less than this share are close.
_CLOSE = 0.08


def _silent(_: str) -> None:
    pass


def contest(judge: Judge, made: Sequence[SetUp], rate: float | None,
            say: Callable[[str], None] = _silent) -> list[Standing]:
    """How each set-up stands at *rate*, or at its highest rate; the best first.

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
