"""The answer to a capacity question in one sentence."""

from collections.abc import Sequence
from math import inf

from ksim.report.wording import DOWN, number, outwards
from ksim.study.capacity.answer import Standing, closest
from ksim.study.capacity.contest import unreached
from ksim.study.capacity.highest_rate import RateAnswer
from ksim.study.capacity.intervals import FEWEST, Interval


def sentence(standings: Sequence[Standing], rate: float | None, confidence: float) -> str:
    """What the best of *standings* needs for *rate*, or carries, with its interval; else which comes closest."""
    best = standings[0]
    if not best.stands:
        return _none_stands(standings)
    sure = f"{100 * confidence:g} %"
    said = _carries(best, sure) if rate is None else _needs(best, rate, sure)
    return f"{said}{_width(best.answer)}"


def _needs(best: Standing, rate: float, sure: str) -> str:
    """Such as "12 GPUs (3 replicas of TP4); 95 %: 11 to 14"."""
    between = best.gpus_between(rate)
    said = f"{_gpus(best.gpus)} ({_replicas(best)}) for {rate:g} requests/s"
    if between is None:
        return said
    if between == (best.gpus, best.gpus):
        assert best.answer, "an interval comes from a search"
        carry = "carries" if best.gpus == 1 else "carry"
        return f"{said}; {sure}: {best.gpus}, which {carry} up to {rates_text(best.answer.interval)} requests/s"
    return f"{said}; {sure}: {gpus_text(between)}"


def _carries(best: Standing, sure: str) -> str:
    assert best.answer, "without a rate, set-ups are searched for their highest one"
    return (f"{number(best.answer.rate)} requests/s on {_gpus(best.gpus)} ({_replicas(best)}); {sure}:"
            f" {rates_text(best.answer.interval)}")


def _width(answer: RateAnswer | None) -> str:
    """Which part of the interval's width is the model's error."""
    if answer is None or answer.interval.high <= answer.interval.low:
        return ""
    if answer.interval.high == inf:
        return f", as there are too few replications; {FEWEST} or more tell it" if answer.interval.low <= 0 else ""
    if answer.model is None:
        return "; all of the width is traffic, as errors of the model were left out"
    tenths = round(10 * answer.model_share)
    if tenths in (0, 10):
        return f"; nearly all of the width is {'the model' + chr(39) + 's error' if tenths else 'traffic'}"
    return f"; of the width {tenths}/10 is the model's error, the rest traffic"


def _none_stands(standings: Sequence[Standing]) -> str:
    near = closest(standings)
    if near is None or near.light is None:
        return f"no set-up keeps the targets: {standings[0].problem}"
    why = unreached(near.light) if near.light.missed else near.problem
    return (f"no set-up keeps the targets; {near.setup.name} comes closest: {why}" if len(standings) > 1 else
            f"{near.setup.name} does not keep the targets: {why}")


def _replicas(best: Standing) -> str:
    return best.setup.name if best.replicas == 1 else f"{best.replicas} replicas of {best.setup.name}"


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count:,} GPUs"


def gpus_text(between: tuple[int, int | None] | None) -> str:
    """An interval of GPUs, such as "11 to 14"; "" where there is none."""
    if between is None:
        return ""
    low, high = between
    return f"{low} or more" if high is None else f"{low} to {high}" if high > low else f"{low}"


def rates_text(interval: Interval) -> str:
    """An interval of rates, such as "9.1 to 12.4"; "unknown" where there are too few replications for one."""
    if interval.low <= 0 and interval.high == inf:
        return "unknown"
    if interval.high == inf:
        return f"{number(interval.low, DOWN)} or more"
    return outwards(interval.low, interval.high)
