"""The result of a tuning, which shows itself in a notebook."""

from typing import TYPE_CHECKING

from attrs import define

from ksim.study.tuning.telling import tuning_html
from ksim.study.tuning.trials import Trials

if TYPE_CHECKING:
    from ksim.report.plots.picture import Picture


@define(eq=False, slots=False)
class Tuning(Trials):
    """The trials of a tuning, and how they look."""

    def plot(self) -> "Picture":
        """The first objective of each trial and the best so far; of several objectives, the front."""
        from ksim.study.tuning.tuning_plot import tuning_plot

        return tuning_plot(self)

    def _repr_html_(self) -> str:
        return tuning_html(self)
