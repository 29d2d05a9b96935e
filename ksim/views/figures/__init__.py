"""What each figure shows: charts made from plain values, once for PNG files and for pages.

A module has the figures of a subject.  None imports matplotlib or Plotly.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from ksim.views.charts import Chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@frozen(eq=False)
class Picture(Chart):
    """A chart that a notebook shows as its last value, and `save` writes as a PNG."""

    @property
    def figure(self) -> "Figure":
        """The chart as matplotlib has it."""
        from ksim.views.drawing import drawn

        return drawn(self)

    def save(self, path: Path | str) -> Path:
        """Write a PNG, the same bytes for the same chart; return its path."""
        from ksim.views.drawing import write

        return write(self.figure, Path(path))

    def _repr_png_(self) -> bytes:
        from ksim.views.drawing import in_notebook

        return in_notebook(self.figure)
