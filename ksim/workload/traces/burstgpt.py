"""BurstGPT's CSV: Timestamp in seconds, Request tokens, Response tokens; newer files have a Session ID.

https://github.com/HPMLL/BurstGPT
"""

from collections.abc import Iterator

from ksim.workload.lines import Lines
from ksim.workload.rows import Row, columns, count, header, moment

__all__ = ["BurstGPT"]

_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


class BurstGPT:
    """Reads columns by name, since their order differs between releases; failed requests have zero tokens."""

    example = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "7,ChatGPT,300,20,320,Conversation log\n"
        "46,GPT-4,0,0,0,Conversation log\n"
        "46,GPT-4,1000,200,1200,API log\n"
    )

    time_unit = "s"
    empty = "skip"

    def recognises(self, first: str) -> bool:
        return set(_COLUMNS) <= set(header(first))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        for time, prompt, output, session in columns(lines, _COLUMNS, ("Session ID",)):
            yield Row(moment(time, "Timestamp", lines), count(prompt, "Request tokens", lines),
                      count(output, "Response tokens", lines), session=session)
