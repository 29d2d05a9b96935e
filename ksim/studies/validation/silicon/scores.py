"""How far answers are from what was measured, group by group of runs, beside what another simulator says."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median

from attrs import frozen

from ksim.studies.validation.silicon.runs import Answer

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
class Score:
    """One group of rows: how many there are and were answered, medians in seconds, and errors.

    `reference` are another simulator's errors over its own answers in the
    group, of which there are `referred`, and `same` ours over those same rows.
    """

    name: tuple[str, ...]
    rows: int
    answered: int
    measured: tuple[float, float] | None
    predicted: tuple[float, float] | None
    ttft: Error | None
    tpot: Error | None
    referred: int
    reference: tuple[Error | None, Error | None]
    same: tuple[Error | None, Error | None]


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
    referred = [answer for answer in answered if answer.row.id in reference]
    own = [_pairs(answered, what, statistic) for what in ("ttft", "tpot")]
    same = [_pairs(referred, what, statistic) for what in ("ttft", "tpot")]
    other = [[(reference[answer.row.id][place], measured) for answer, (_, measured) in zip(referred, pairs, strict=True)]
             for place, pairs in enumerate(same)]
    medians = [tuple(median(pair[side] for pair in pairs) for pairs in own) for side in (0, 1)] if answered else [None] * 2
    return Score(name, len(answers), len(answered), medians[1], medians[0], Error.of(own[0]), Error.of(own[1]),
                 len(referred), (Error.of(other[0]), Error.of(other[1])), (Error.of(same[0]), Error.of(same[1])))


def _pairs(answers: Sequence[Answer], what: str, statistic: str) -> list[tuple[float, float]]:
    """Predicted and measured seconds of each."""
    return [(answer.predicted(what, statistic), getattr(answer.row, what)) for answer in answers]
