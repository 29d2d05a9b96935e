"""The figure of a capacity question: what it shows of each set-up."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ksim.report.wording import model_name
from ksim.study.capacity.answer import Standing
from ksim.study.capacity.estimate import RatePoint
from ksim.study.capacity.intervals import FEWEST, Interval

if TYPE_CHECKING:
    from ksim.report.plots.capacity import Curve
    from ksim.report.plots.picture import Picture


def curve(title: str, standings: Sequence[Standing], rate: float | None) -> "Picture":
    """Attainment and goodput over the rate, of the set-ups whose highest rate was searched for."""
    from ksim.report.plots.capacity import capacity_figure
    from ksim.report.plots.picture import Picture
    from ksim.report.plots.style import looks

    with looks():
        return Picture(capacity_figure(_subject(title, standings), list(_curves(standings)), rate))


def _subject(title: str, standings: Sequence[Standing]) -> str:
    """What is asked about: models, as set-ups have them; else the *title*."""
    models = dict.fromkeys(model_name({"model_id": one.setup.scenario.model}) for one in standings
                           if one.setup.scenario)
    return ", ".join(models) or title


def _curves(standings: Sequence[Standing]) -> "Iterator[Curve]":
    from ksim.report.plots.capacity import Curve

    for one in [one for one in standings if one.answer] or standings:
        if points := _shown(one):
            targets = points[0].attainment
            yield Curve(
                one.setup.name if one.replicas < 2 else f"{one.replicas} x {one.setup.name}",
                [point.rate for point in points],
                [_band(*point.goodput) for point in points],
                {str(target): [_band(*point.attainment[target]) for point in points] for target in targets},
                {str(target): target.share for target in targets},
                (one.answer.rate, one.answer.interval.low, one.answer.interval.high) if one.answer else None)


def _shown(one: Standing) -> Sequence[RatePoint]:
    """The rates that were tried often enough for a band, or all of them where none was."""
    return [point for point in one.points if point.replications >= FEWEST] or one.points


def _band(value: float, interval: Interval) -> tuple[float, float, float]:
    return value, interval.low, interval.high
