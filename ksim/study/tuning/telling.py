"""A tuning in words: the best trials, what the others missed, and which settings mattered."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from ksim.report.formats import html_block, html_table
from ksim.report.tables import Table
from ksim.report.wording import number
from ksim.study.grid import short_names, value_text
from ksim.study.means import SweepPoint
from ksim.study.objectives import Requirement, value_of
from ksim.study.pareto import ParetoPoint, first_of
from ksim.study.rows import FAILED, NOT_RUN, STOPPED
from ksim.study.tuning.importance import importance
from ksim.study.tuning.lessons import at_stop, violation
from ksim.study.tuning.trials import Trials

#: The most rows of a table.
_MOST = 10


def best_table(tuning: Trials) -> Table:
    """The best trials, or all of the front: settings, objectives, and what is required."""
    counted = [point for point in tuning.ranked if not point.problem]
    keys = list(dict.fromkeys([*(goal.key for goal in tuning.wanted), *(bound.key for bound in tuning.required)]))
    axes = list(counted[0].outcome.settings) if counted else []
    table = Table.of(">#", ">trial", *short_names(axes).values(), *(f">{key}" for key in keys), "")
    for point in counted[:max(_MOST, len(tuning.front))]:
        table.add_row(str(point.number), str(tuning.trial(point).number),
                      *(value_text(value) for value in point.outcome.settings.values()),
                      *(number(value_of(point.outcome.summary or {}, key)) for key in keys), _place(tuning, point),
                      style="bold" if point.on_front else "")
    return table


def remarks(tuning: Trials) -> Iterator[str]:
    """How many trials there were and how they ended, what they missed, and which settings mattered."""
    counts = tuning.counts
    words = {STOPPED: "stopped early", FAILED: "failed", NOT_RUN: "not run"}
    ended = [f"{counts[status]:,} {word}" for status, word in words.items() if counts.get(status)]
    yield f"{len(tuning.points):,} trials{f', of which {_joined(ended)}' if ended else ''}"
    for requirement, missed in _misses(tuning):
        yield f"{missed:,} trials missed {requirement}"
    problems = [point.outcome.problem for point in tuning.points if any(row.status == FAILED for row in point.rows)]
    if problems:
        yield f"{len(problems):,} trials failed: {first_of(problems)}"
    if shares := importance(tuning):
        names = short_names(list(shares))
        yield (f"of the differences in {tuning.wanted[0].key}, "
               f"{_joined([f'{share:.0%} came from {names[key]}' for key, share in shares.items()])}")


def refusal(tuning: Trials) -> str:
    """Why no trial counts, which comes closest, and what it misses; "" where one counts."""
    if tuning.best is not None:
        return ""
    closest = min(tuning.points, key=lambda point: _away(tuning, point), default=None)
    problems = [point.problem for point in tuning.ranked]
    if closest is None or _away(tuning, closest) == inf:
        return f"none of {len(problems):,} trials counts: {first_of(problems)}"
    numbers = _numbers(closest)
    missed = [(violation(bound, value_of(numbers, bound.key)), bound) for bound in tuning.required]
    binding = [f"{bound.key} is {number(value_of(numbers, bound.key))}, not {bound.sign} {bound.bound:g}"
               for away, bound in sorted(missed, key=lambda pair: -pair[0]) if away > 0]
    problem = next(point.problem for point in tuning.ranked if point.outcome is closest.outcome)
    settings = ", ".join(f"{name} {value_text(closest.settings[key])}"
                         for key, name in short_names(list(closest.settings)).items())
    return (f"none of {len(problems):,} trials counts; trial {closest.number} comes closest ({settings}):"
            f" {'; '.join(binding) or problem}")


def tuning_html(tuning: Trials) -> str:
    """A tuning in a notebook."""
    return html_block(tuning.title, html_table(best_table(tuning)), refusal(tuning), *remarks(tuning))


def _away(tuning: Trials, point: SweepPoint) -> float:
    """How far a trial is from meeting what is required; infinitely far if it failed."""
    numbers = _numbers(point)
    if not numbers:
        return inf
    return sum(max(0.0, violation(bound, value_of(numbers, bound.key))) for bound in tuning.required)


def _numbers(point: SweepPoint) -> Mapping[str, Any]:
    """What is known of a trial: its numbers, or those of the moment when it was stopped."""
    return point.outcome.summary or at_stop(point.rows) or {}


def _misses(tuning: Trials) -> Iterator[tuple[Requirement, int]]:
    """How many trials miss each of what is required, most often missed first; those that failed aside."""
    known = [numbers for point in tuning.points if (numbers := _numbers(point))]
    missed = [(bound, sum(bool(bound.missed(numbers)) for numbers in known)) for bound in tuning.required]
    return iter(sorted([pair for pair in missed if pair[1]], key=lambda pair: -pair[1]))


def _place(tuning: Trials, point: ParetoPoint) -> str:
    if point.on_front:
        return "best" if len(tuning.wanted) == 1 else "on the front"
    return "" if len(tuning.wanted) == 1 else f"beaten by {point.beaten_by}"


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
