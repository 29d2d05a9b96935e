"""The figure of a tuning: its trials and the best so far, or the front of several objectives."""

from typing import TYPE_CHECKING

from ksim.study.grid import value_text
from ksim.study.tuning.space import Trials

if TYPE_CHECKING:
    from ksim.report.plots.studies import Picture


def tuning_plot(tuning: Trials) -> "Picture":
    """The first objective of each trial and the best so far; of several objectives, the front."""
    from ksim.report.plots.style import looks

    with looks():
        return _over_trials(tuning) if len(tuning.wanted) == 1 else _front(tuning)


def _over_trials(tuning: Trials) -> "Picture":
    from ksim.report.plots.studies import Picture, Scale, tuning_figure

    objective = tuning.wanted[0]
    numbers = {id(point.outcome): point.number for point in tuning.points}
    told = [(numbers[id(point.outcome)], point.values[0], not point.problem) for point in tuning.ranked if point.values]
    without = len(tuning.points) - len(told)
    note = f"{len(tuning.points)} trials{f', {without} of them without a value' if without else ''}"
    label = Scale(objective.key, objective.maximise).label
    return Picture(tuning_figure(tuning.title, note, label, sorted(told), objective.maximise))


def _front(tuning: Trials) -> "Picture":
    from ksim.report.plots.studies import ParetoMark, Picture, Scale, pareto_figure

    marks = [ParetoMark(point.values, point.on_front, ", ".join(map(value_text, point.outcome.settings.values())))
             for point in tuning.ranked if not point.problem]
    scales = [Scale(objective.key, objective.maximise) for objective in tuning.wanted]
    return Picture(pareto_figure(tuning.title, f"{len(marks)} of {len(tuning.points)} trials count", scales, marks))
