"""ksim's own CSV: arrival in seconds, prompt, output; priority, session, delay and tenant if wanted."""

from collections.abc import Iterator

from ksim.workload.columns import columns, header
from ksim.workload.fields import count, duration, integer, moment
from ksim.workload.lines import Lines
from ksim.workload.row import Row

__all__ = ["Plain"]

_COLUMNS = ("arrival", "prompt", "output")


class Plain:
    """Reads rows of one `session` as its turns, each at least `delay` seconds after the end of the one before."""

    example = (
        "arrival,prompt,output,priority,session,delay,tenant\n"
        "0.0,512,64,0,,,alice\n"
        "0.25,100,20,1,chat,,bob\n"
        "0.25,140,20,1,chat,3.5,bob\n"
    )

    def recognises(self, first: str) -> bool:
        return set(_COLUMNS) <= set(header(first))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        for time, prompt, output, priority, session, delay, tenant in columns(
                lines, _COLUMNS, ("priority", "session", "delay", "tenant")):
            yield Row(moment(time, "arrival", lines), count(prompt, "prompt", lines), count(output, "output", lines),
                      priority=integer(priority, "priority", lines), session=session,
                      delay=duration(delay, "delay", lines), tenant=tenant)
