"""Errors of answers by group of runs, beside those of another simulator."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median

from attrs import frozen

from ksim.validation.silicon.runs import Answer

#: Another simulator's answers: TTFT and TPOT in seconds by row id.
Reference = Mapping[str, tuple[float, float]]


@frozen
class Error:
    """Errors of a quantity in per cent: `bias` is the median signed one; `median` and `mean` are of absolute ones."""

    bias: float
    median: float
    mean: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> "Error | None":
        """The errors of pairs of predicted and measured values; None without pairs."""
        errors = [100 * (predicted / measured - 1) for predicted, measured in pairs]
        if not errors:
            return None
        return cls(median(errors), median(map(abs, errors)), fmean(map(abs, errors)))


@frozen
class Quantity:
    """TTFT or TPOT of a group of rows: the medians of what was `measured` and `predicted`, in seconds, and the errors.

    `reference` has another simulator's errors where it has answers, and `same` has ours on the same rows.
    """

    measured: float | None
    predicted: float | None
    error: Error | None
    reference: Error | None
    same: Error | None


@frozen
class Score:
    """A group of rows: their number, how many ksim `answered`, and how many of these another simulator answers.

    `throughput` has output tokens per second and GPU, of rows whose GPUs are known.
    """

    name: tuple[str, ...]
    rows: int
    answered: int
    referred: int
    ttft: Quantity
    tpot: Quantity
    throughput: Quantity


def group_of(answer: Answer) -> tuple[str, ...]:
    """The kind of run that *answer* is for."""
    row = answer.row
    return row.model_path, row.system, row.backend, row.precision or "16 bit", *_mode(answer)


def backend_of(answer: Answer) -> tuple[str, ...]:
    """The engine that *answer* is for, disaggregated or not."""
    return answer.row.backend, *_mode(answer)


def tier_of(answer: Answer) -> tuple[str, ...]:
    """The engine and the GPU of a disaggregated run, and how sure its deployment is."""
    return answer.row.backend, answer.row.system, answer.row.split.tier if answer.row.split else ""


def _mode(answer: Answer) -> tuple[str, ...]:
    return () if answer.row.mode == "agg" else (answer.row.mode,)


def scores(answers: Sequence[Answer], key: Callable[[Answer], tuple[str, ...]], statistic: str,
           reference: Reference) -> list[Score]:
    """A score for each value of *key*, in their order."""
    groups: dict[tuple[str, ...], list[Answer]] = {}
    for answer in answers:
        groups.setdefault(key(answer), []).append(answer)
    return [score(name, groups[name], statistic, reference) for name in sorted(groups)]


def score(name: tuple[str, ...], answers: Sequence[Answer], statistic: str, reference: Reference) -> Score:
    """The score of *answers* by a *statistic* over requests; "" takes that of each row's source."""
    answered = [answer for answer in answers if not answer.reason]
    ttft = _quantity(answered, "ttft", statistic, {name: times[0] for name, times in reference.items()})
    tpot = _quantity(answered, "tpot", statistic, {name: times[1] for name, times in reference.items()})
    referred = sum(answer.row.id in reference for answer in answered)
    rates = {answer.row.id: rates for answer in answered if (rates := answer.rates)}
    return Score(name, len(answers), len(answered), referred, ttft, tpot, _compared(rates, {}))


def _quantity(answered: Sequence[Answer], what: str, statistic: str, reference: Mapping[str, float]) -> Quantity:
    return _compared({answer.row.id: (answer.predicted(what, statistic), float(getattr(answer.row, what)))
                      for answer in answered}, reference)


def _compared(pairs: Mapping[str, tuple[float, float]], reference: Mapping[str, float]) -> Quantity:
    """*pairs* of predicted and measured values by row id, beside another simulator's values."""
    referred = {name: pair for name, pair in pairs.items() if name in reference}
    return Quantity(
        median(measured for _, measured in pairs.values()) if pairs else None,
        median(predicted for predicted, _ in pairs.values()) if pairs else None,
        Error.of(pairs.values()),
        Error.of((reference[name], measured) for name, (_, measured) in referred.items()),
        Error.of(referred.values()))
