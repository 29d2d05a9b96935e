"""Mooncake's JSON lines: `timestamp` in ms, lengths, `hash_ids` of 512 tokens, sessions as Dynamo writes them.

https://github.com/kvcache-ai/Mooncake
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from attrs import field, frozen
from attrs.validators import gt

from ksim.flow.request import Request
from ksim.workload.cache_curve import HashIds
from ksim.workload.rows import follows

__all__ = ["Mooncake"]


@frozen
class Mooncake:
    """Writes a request a line, with the length of its whole prompt.

    Block ids are of `block_size` tokens; other sizes than Mooncake's 512 have to be told to who reads the file.
    """

    block_size: int = field(default=512, validator=gt(0))

    reader: ClassVar[str] = "mooncake"
    reading: ClassVar[dict[str, Any]] = {}
    times: ClassVar[str] = "needs"
    fields: ClassVar[frozenset[str]] = frozenset({"chunks", "session", "delay"})

    @property
    def remarks(self) -> list[str]:
        if self.block_size == 512:
            return []
        return [f"block ids are of {self.block_size} tokens, not of Mooncake's 512; ksim reads them with --chunk-tokens"
                f" {self.block_size}"]

    def rows(self, requests: Iterable[Request], timed: bool) -> Iterator[dict[str, Any]]:
        ids, before = HashIds(self.block_size), None
        for request in requests:
            row = clocked(request, before)
            yield row | {"input_length": request.prompt, "output_length": request.output, "hash_ids": ids.of(request)}
            before = request


def clocked(request: Request, before: Request | None) -> dict[str, Any]:
    """The session of *request* and when it comes, in ms: a turn that waits for the one *before* has its delay alone."""
    row: dict[str, Any] = {"session_id": request.session} if request.session else {}
    if not follows(request, before):
        row["timestamp"] = milliseconds(request.arrival)
    if request.delay or "timestamp" not in row:
        row["delay"] = milliseconds(request.delay)
    return row


def milliseconds(seconds: float) -> float | int:
    """*seconds* in ms, as a whole number where it is one, to the nanosecond."""
    value = round(seconds * 1e3, 6)
    return int(value) if value.is_integer() else value
