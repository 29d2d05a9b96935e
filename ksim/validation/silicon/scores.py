"""How far answers are from what was measured, group by group of runs, beside what another simulator says."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median

from attrs import frozen

from ksim.validation.silicon.runs import Answer

#: What another simulator says of rows: TTFT and TPOT in seconds by id.
Reference = Mapping[str, tuple[float, float]]


@frozen
class Error:
    """Errors of one quantity in per cent: `bias` the median signed one, `median` and `mean` of their sizes."""

    bias: float
    median: float
    mean: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> "Error | None":
        """Of pairs of predicted and measured; None where there are none."""
        errors = [100 * (predicted / measured - 1) for predicted, measured in pairs]
        if not errors:
            return None
        return cls(median(errors), median(map(abs, errors)), fmean(map(abs, errors)))


@frozen
class Quantity:
    """TTFT or TPOT of a group of rows: medians of what was `measured` and `predicted` in seconds, and the errors.

    `reference` are another simulator's errors where it has answers, and `same`
    our own over those very rows.
    """

    measured: float | None
    predicted: float | None
    error: Error | None
    reference: Error | None
    same: Error | None


@frozen
class Score:
    """One group of rows: how many there are, were `answered`, and were also `referred` to by another simulator."""

    name: tuple[str, ...]
    rows: int
    answered: int
    referred: int
    ttft: Quantity
    tpot: Quantity


def group_of(answer: Answer) -> tuple[str, ...]:
    row = answer.row
    return row.model_path, row.system, row.backend, row.precision or "16 bit"


def scores(answers: Sequence[Answer], key: Callable[[Answer], tuple[str, ...]], statistic: str,
           reference: Reference) -> list[Score]:
    """One score for each value of *key*, in its order."""
    groups: dict[tuple[str, ...], list[Answer]] = {}
    for answer in answers:
        groups.setdefault(key(answer), []).append(answer)
    return [score(name, groups[name], statistic, reference) for name in sorted(groups)]


def score(name: tuple[str, ...], answers: Sequence[Answer], statistic: str, reference: Reference) -> Score:
    """The score of *answers*, by a *statistic* over requests, or each by its source's where it is ""."""
    answered = [answer for answer in answers if not answer.reason]
    ttft = _quantity(answered, "ttft", statistic, {name: each[0] for name, each in reference.items()})
    tpot = _quantity(answered, "tpot", statistic, {name: each[1] for name, each in reference.items()})
    referred = sum(answer.row.id in reference for answer in answered)
    return Score(name, len(answers), len(answered), referred, ttft, tpot)


def _quantity(answered: Sequence[Answer], what: str, statistic: str, reference: Mapping[str, float]) -> Quantity:
    pairs = {answer.row.id: (answer.predicted(what, statistic), float(getattr(answer.row, what)))
             for answer in answered}
    referred = {name: pair for name, pair in pairs.items() if name in reference}
    return Quantity(
        median(measured for _, measured in pairs.values()) if pairs else None,
        median(predicted for predicted, _ in pairs.values()) if pairs else None,
        Error.of(pairs.values()),
        Error.of((reference[name], measured) for name, (_, measured) in referred.items()),
        Error.of(referred.values()))
