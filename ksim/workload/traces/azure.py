"""Azure's CSV of 2023, 2024 and, with images, 2025: TIMESTAMP, ContextTokens, GeneratedTokens.

https://github.com/Azure/AzurePublicDataset
"""

from collections.abc import Iterator
from typing import Any

from attrs import Attribute, field, frozen

from ksim.flow.request import Image
from ksim.workload.images import image_size
from ksim.workload.lines import Lines
from ksim.workload.rows import Dates, Row, columns, count, header

__all__ = ["Azure"]

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _size(_: Any, attribute: "Attribute[str]", value: str) -> None:
    if value:
        image_size(value)


@frozen
class Azure:
    """Reads wall-clock times, with or without fraction and zone; a time without a zone is UTC.

    The trace of 2025 says how many images a request has, and not their sizes: all have the size `image`, such as
    "1024x1024", or are text to a model.  ContextTokens count their tokens already.
    """

    image: str = field(default="", validator=_size)

    example = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:00:00.1234500,350,40\r\n"
        "2023-11-16 18:00:01,400,100\r\n"
        "2023-11-16 18:00:01.500000+00:00,20,8"
    )

    time_unit = "dates"
    empty = "error"

    def recognises(self, first: str) -> bool:
        return set(_COLUMNS) <= set(header(first))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        dates = Dates(lines)
        if self.image:
            yield from self._with_images(lines, dates)
            return
        for time, prompt, output in columns(lines, _COLUMNS):
            yield Row(dates.seconds(time, "TIMESTAMP"), count(prompt, "ContextTokens", lines),
                      count(output, "GeneratedTokens", lines))

    def _with_images(self, lines: Lines, dates: Dates) -> Iterator[Row]:
        width, height = image_size(self.image)
        for time, prompt, output, number in columns(lines, (*_COLUMNS, "NumImages")):
            tokens, images = count(prompt, "ContextTokens", lines), _images(number, lines)
            yield Row(dates.seconds(time, "TIMESTAMP"), tokens, count(output, "GeneratedTokens", lines),
                      images=(Image(width, height, tokens, counted=True),) * images)


def _images(text: str, lines: Lines) -> int:
    if not text.isdecimal() or len(text) > 3:
        raise lines.error(f"NumImages is {text[:60]!r}; expected a whole number of images, at most 999")
    return int(text)
