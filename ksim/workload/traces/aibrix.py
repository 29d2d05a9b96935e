"""AIBrix's JSON lines: a time in ms and the requests that arrive at it, with prompt_length and output_length.

https://github.com/vllm-project/aibrix, benchmarks/generator
"""

from collections.abc import Iterator

from ksim.workload.jsonl import first_object, member, objects
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, count, label, moment, shown

__all__ = ["AIBrix"]

_PROMPT = ("prompt_length", "Prompt Length")
_OUTPUT = ("output_length", "Output Length")


class AIBrix:
    """Reads both spellings of the lengths.

    A length is that of the whole prompt.  Requests of one `session_id` are the turns
    of a conversation.  An output length that is null is unknown, which is an error.
    """

    example = (
        '{"timestamp": 6000, "requests": [{"Prompt Length": 170, "Output Length": 8, "prompt": ""}]}\n'
        '{"timestamp": 6500, "requests": [{"prompt_length": 30, "output_length": 4, "session_id": "a"}, '
        '{"prompt_length": 250, "output_length": 40}]}\n'
        '{"timestamp": 7000, "requests": [{"prompt_length": 60, "output_length": 9, "session_id": "a"}]}\n'
    )
    time_unit = "ms"
    empty = "skip"

    def recognises(self, first: str) -> bool:
        row = first_object(first)
        return "timestamp" in row and isinstance(row.get("requests"), list)

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        for row in objects(lines):
            arrival = moment(member(row, ("timestamp",), lines), "timestamp", lines, per_second=1000)
            requests = member(row, ("requests",), lines)
            if not isinstance(requests, list):
                raise lines.error(f"requests is {shown(requests)}; expected a list")
            for index, request in enumerate(requests):
                where = f"requests[{index}]"
                if not isinstance(request, dict):
                    raise lines.error(f"{where} is {shown(request)}; expected a request with prompt_length")
                yield Row(arrival, count(member(request, _PROMPT, lines, where), f"{where}.prompt_length", lines),
                          count(member(request, _OUTPUT, lines, where), f"{where}.output_length", lines),
                          session=label(request.get("session_id"), f"{where}.session_id", lines))
