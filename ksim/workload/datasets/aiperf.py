"""AIPerf's `mooncake_trace`: as Mooncake's, but turns of a session have the length of what is new in them.

https://github.com/ai-dynamo/aiperf: `aiperf profile --custom-dataset-type mooncake_trace --input-file FILE`
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from attrs import field, frozen
from attrs.validators import gt

from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError
from ksim.workload.cache_curve import HashIds
from ksim.workload.datasets.mooncake import clocked

__all__ = ["Aiperf"]


@frozen
class Aiperf:
    """Writes a request a line; AIPerf sends a turn behind all that was said before in its session.

    Block ids are of `block_size` tokens, those of the first turn of a session: later ones share it anyway.
    """

    block_size: int = field(default=512, validator=gt(0))

    reader: ClassVar[str] = "mooncake"
    reading: ClassVar[dict[str, Any]] = {"turns": "new"}
    times: ClassVar[str] = "takes"
    fields: ClassVar[frozenset[str]] = frozenset({"chunks", "session", "delay"})

    @property
    def remarks(self) -> list[str]:
        told = "" if self.block_size == 512 else f" --isl-block-size {self.block_size}"
        return [f"aiperf profile --custom-dataset-type mooncake_trace{told} --input-file FILE; --fixed-schedule sends"
                " at the recorded times"]

    def rows(self, requests: Iterable[Request], timed: bool) -> Iterator[dict[str, Any]]:
        ids, before = HashIds(self.block_size), None
        said: dict[str, int] = {}
        for request in requests:
            row = clocked(request, before)
            if not timed:
                row.pop("timestamp", None)
            context = said.get(request.session, 0) if request.session else 0
            new = request.prompt - context
            if new < 1:
                raise ConfigError("--to aiperf", f"request {request.id} of session {request.session!r} has a prompt of"
                                  f" {request.prompt:,} tokens, and {context:,} were said before it; AIPerf sends all"
                                  " of them again: write --to mooncake")
            row |= {"input_length": new, "output_length": request.output}
            if not context and (names := ids.of(request)):
                row["hash_ids"] = names
            said[request.session], before = request.prompt + request.output, request
            yield row
