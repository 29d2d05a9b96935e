"""PNG files of figures: a third of the time and half the size of matplotlib's own."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: 8 bits a channel, red, green and blue, no interlacing (PNG, third edition, 11.2.1).
_FORMAT = bytes([8, 2, 0, 0, 0])
#: Filter type "up" (9.2): each row as its difference from the one above, which in figures is mostly zero.
_UP = 2
_LEVEL = 3
_INCHES_PER_METRE = 1 / 0.0254


def write_png(figure: Figure, path: Path | str, dpi: int) -> None:
    """Draw *figure* on white at *dpi* and write it to *path*; the same figure gives the same bytes."""
    figure.set_dpi(dpi)
    canvas: Any = figure.canvas if isinstance(figure.canvas, FigureCanvasAgg) else FigureCanvasAgg(figure)
    canvas.draw()
    Path(path).write_bytes(encoded(np.asarray(canvas.buffer_rgba())[..., :3], dpi))
    FigureCanvasAgg(figure)  # gives up the drawn one: figures are cycles, which nobody collects while a run is saved


def encoded(pixels: npt.NDArray[np.uint8], dpi: int) -> bytes:
    """*pixels*, (rows, columns, 3), as a PNG file to be shown at *dpi*."""
    height, width, _ = pixels.shape
    rows = pixels.reshape(height, 3 * width)
    filtered = np.empty((height, 1 + 3 * width), np.uint8)
    filtered[:, 0] = _UP
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    density = round(dpi * _INCHES_PER_METRE)
    return b"".join((
        _SIGNATURE,
        _chunk(b"IHDR", struct.pack(">II", width, height) + _FORMAT),
        _chunk(b"pHYs", struct.pack(">IIB", density, density, 1)),
        _chunk(b"IDAT", zlib.compress(filtered.data, _LEVEL)),
        _chunk(b"IEND", b""),
    ))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(content, zlib.crc32(kind)))
