"""A figure that shows itself in a notebook."""

import io
from pathlib import Path

from attrs import frozen
from matplotlib.figure import Figure

from ksim.report.plots.style import write

#: A notebook shows each pixel as one of the page, so that the density of files would be too large.
_DPI = 80


@frozen(eq=False)
class Picture:
    """A matplotlib `figure`, which a notebook shows as its last value, and `save` writes as a PNG."""

    figure: Figure

    def save(self, path: Path | str) -> Path:
        return write(self.figure, Path(path))

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=_DPI)
        return file.getvalue()
