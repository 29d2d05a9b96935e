"""Azure's CSV of 2023, 2024 and, with images, 2025: TIMESTAMP, ContextTokens, GeneratedTokens.

https://github.com/Azure/AzurePublicDataset
"""

from collections.abc import Iterator

from ksim.workload.columns import columns, header
from ksim.workload.fields import Dates, count
from ksim.workload.lines import Lines
from ksim.workload.row import Row

__all__ = ["Azure"]

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class Azure:
    """Reads wall-clock times, with or without fraction and zone; a time without a zone is UTC."""

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
        for time, prompt, output in columns(lines, _COLUMNS):
            yield Row(dates.seconds(time, "TIMESTAMP"), count(prompt, "ContextTokens", lines),
                      count(output, "GeneratedTokens", lines))
