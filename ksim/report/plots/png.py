"""PNG files of figures."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

#: Pillow's lowest level of compression: half the time of matplotlib's own PNGs, and files as large.
_LEVEL = 1


def write_png(figure: Figure, path: Path, dpi: int) -> None:
    """Draw *figure* on white at *dpi* and write it to *path*; the same figure gives the same bytes."""
    figure.set_dpi(dpi)
    canvas = figure.canvas if isinstance(figure.canvas, FigureCanvasAgg) else FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]
    Image.fromarray(np.ascontiguousarray(pixels)).save(path, "png", compress_level=_LEVEL, dpi=(dpi, dpi))
    FigureCanvasAgg(figure)  # gives up the drawn one: figures are cycles, which nobody collects while a run is saved
