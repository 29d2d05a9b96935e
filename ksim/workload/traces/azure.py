"""Azure's CSV of 2023, 2024 and, with images, 2025: TIMESTAMP, ContextTokens, GeneratedTokens.

https://github.com/Azure/AzurePublicDataset
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from ksim.workload.columns import columns, header
from ksim.workload.fields import count
from ksim.workload.lines import Lines
from ksim.workload.row import Row

__all__ = ["Azure"]

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class Azure:
    """Reads wall-clock times with or without fraction and zone; one without a zone is UTC."""

    example = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:00:00.1234500,350,40\r\n"
        "2023-11-16 18:00:01,400,100\r\n"
        "2023-11-16 18:00:01.500000+00:00,20,8"
    )

    def recognises(self, first: str) -> bool:
        return set(_COLUMNS) <= set(header(first))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        origin = None
        for time, prompt, output in columns(lines, _COLUMNS):
            instant = _instant(time, lines)
            origin = origin or instant
            yield Row((instant - origin).total_seconds(), count(prompt, "ContextTokens", lines),
                      count(output, "GeneratedTokens", lines))


def _instant(time: str, lines: Lines) -> datetime:
    try:
        instant = datetime.fromisoformat(time)  # takes any number of digits and drops what is below 1 us
    except ValueError:
        raise lines.error(f"TIMESTAMP is {time!r}; expected a time such as 2023-11-16 18:15:46.6805900") from None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
