"""splitwise-sim's CSV: arrival_timestamp in seconds, prompt_size, token_size.

https://github.com/Mutinifni/splitwise-sim
"""

from collections.abc import Iterator

from ksim.workload.lines import Lines
from ksim.workload.rows import Row, columns, count, header, moment, shown

__all__ = ["Splitwise"]

_COLUMNS = ("arrival_timestamp", "prompt_size", "token_size")


class Splitwise:
    """Reads one request per row; a `batch_size` other than 1 is an error, type and application are ignored."""

    example = (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,1,1,500,30\n"
        "1,2,0,1.5,1,2000,7\n"
    )
    time_unit = "s"
    empty = "error"

    def recognises(self, first: str) -> bool:
        return set(_COLUMNS) <= set(header(first))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        for time, prompt, output, batch in columns(lines, _COLUMNS, ("batch_size",)):
            if batch not in ("", "1"):
                raise lines.error(f"batch_size is {shown(batch)}; ksim reads one request per row; write a row for "
                                  "each")
            yield Row(moment(time, "arrival_timestamp", lines), count(prompt, "prompt_size", lines),
                      count(output, "token_size", lines))
