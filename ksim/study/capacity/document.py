"""The set-ups of a capacity question as capacity.json has them; docs/capacity.md says what each key means."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from ksim.study.capacity.answer import COSTS, Standing
from ksim.study.capacity.estimate import RatePoint
from ksim.study.capacity.highest_rate import RateAnswer
from ksim.study.capacity.intervals import Interval
from ksim.study.capacity.light import Light


def set_ups(standings: Sequence[Standing], rate: float | None) -> list[dict[str, Any]]:
    """How each set-up stands, the best first."""
    return [_standing(one, rate) for one in standings]


def _standing(one: Standing, rate: float | None) -> dict[str, Any]:
    between = None if rate is None else one.gpus_between(rate)
    return {
        "name": one.setup.name, "settings": {key: _plain(value) for key, value in one.setup.settings.items()},
        "stands": one.stands, "problem": one.problem, "replicas": one.replicas or None, "gpus": one.gpus or None,
        "gpus_interval": None if between is None else list(between), "gpus_per_replica": one.setup.gpus or None,
        **{key: one.cost(key) for key in COSTS},
        "binds": str(one.binds) if one.binds else None,
        "point": _point(one.point) if one.point else None, "points": [_point(point) for point in one.points],
        "highest_rate": _answer(one.answer) if one.answer else None,
        "light": _light(one.light) if one.light else None,
    }


def _point(point: RatePoint) -> dict[str, Any]:
    return {
        "rate": point.rate, "replications": point.replications, "hopeless": point.hopeless,
        "saturated": point.saturated, "meets": point.meets, "goodput": _estimate(point.goodput),
        "targets": {str(target): {"attainment": _estimate(point.attainment[target]), "seconds":
                    _estimate(point.values[target])} for target in point.values},
        "numbers": {key: _finite(value) for key, value in point.numbers.items()},
    }


def _answer(answer: RateAnswer) -> dict[str, Any]:
    return {
        "rate": answer.rate, "interval": _interval(answer.interval), "traffic": _interval(answer.traffic),
        "model": _interval(answer.model) if answer.model else None, "model_share": answer.model_share,
        "binds": str(answer.binds) if answer.binds else None,
    }


def _light(light: Light) -> dict[str, Any]:
    return {"seconds": {str(target): _finite(value) for target, value in light.values.items()},
            "missed": [str(target) for target in light.missed], "bounds": dict(light.bounds)}


def _estimate(found: tuple[float, Interval]) -> dict[str, Any]:
    value, interval = found
    return {"value": _finite(value), "interval": _interval(interval)}


def _interval(interval: Interval) -> list[float | None]:
    return [_finite(interval.low), _finite(interval.high)]


def _finite(value: float) -> float | None:
    """A number for JSON, which has no infinity: None for what is not known."""
    return value if isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return value if isinstance(value, bool | int | float | str) else str(value)
