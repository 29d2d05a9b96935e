"""A figure that a notebook shows by itself."""

from io import BytesIO
from pathlib import Path

from attrs import frozen
from matplotlib.figure import Figure

from ksim.report.plots.style import looks, write

#: Dots per inch on a screen.
_SCREEN = 110


@frozen
class Picture:
    """A figure that notebooks show, and that can be saved."""

    figure: Figure

    def save(self, path: Path | str) -> Path:
        """Write it as a PNG."""
        with looks():
            return write(self.figure, Path(path))

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        with looks():
            self.figure.savefig(file, format="png", dpi=_SCREEN)
        return file.getvalue()
