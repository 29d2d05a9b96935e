"""Mooncake's JSON lines, with the sessions that Dynamo and AIPerf added: times in ms, ids of 512-token blocks.

https://github.com/kvcache-ai/Mooncake and https://docs.nvidia.com/aiperf
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from attrs import field, frozen
from attrs.validators import in_

from ksim.workload.jsonl import first_object, member, objects
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, chunk_names, count, duration, moment

__all__ = ["Mooncake"]

_CHUNK_TOKENS = 512
_TIME = ("timestamp", "created_time")
_INPUT = ("input_length", "input_tokens")
_OUTPUT = ("output_length", "output_tokens")
_TEXT = ("text_input", "messages", "payload")


@frozen
class Mooncake:
    """Reads the rows of one `session_id` as its turns.

    A turn may have a `delay` after the turn before it instead of a `timestamp`; it
    then arrives with that turn.  With `turns` "new", a later turn's length is that of
    what it adds to all that was said before, as AIPerf has it; else of all its prompt.
    """

    turns: str = field(default="whole", validator=in_(("whole", "new")))

    example = (
        '{"timestamp": 3000, "input_length": 700, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"session_id": "a", "timestamp": 6000, "input_length": 600, "output_length": 26, "hash_ids": [46, 48]}\n'
        '{"session_id": "a", "delay": 500, "input_length": 1100, "output_length": 30, "hash_ids": [46, 49, 50]}\n'
    )

    time_unit = "ms"
    empty = "error"

    def recognises(self, first: str) -> bool:
        row = first_object(first)
        pieces = row.get("hash_ids")
        of_another = "chat_id" in row or (isinstance(pieces, dict) and "sys_prompt" in pieces)
        return not of_another and any(name in row for name in (*_INPUT, *_TEXT))

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        size = chunk_tokens or _CHUNK_TOKENS
        turns: dict[str, float] = {}
        said: dict[str, list[Any]] = {}
        for row in objects(lines):
            _refuse_texts(row, lines)
            session = "" if row.get("session_id") is None else str(row["session_id"])
            arrival = _arrival(row, turns.get(session), lines)
            if session:
                turns[session] = arrival
            length = count(member(row, _INPUT, lines), "input_length", lines)
            output = count(member(row, _OUTPUT, lines), "output_length", lines)
            names = chunk_names(row.get("hash_ids"), length, size, lines)
            prompt = length
            if self.turns == "new" and session:
                prompt, names = _behind(said.setdefault(session, []), session, length, output, (names, size))
            yield Row(arrival, prompt, output, names, size, session=session,
                      delay=duration(row.get("delay"), "delay", lines, per_second=1000))


def _behind(said: list[Any], session: str, length: int, output: int, named: tuple[tuple[Hashable, ...], int]
            ) -> tuple[int, tuple[Hashable, ...]]:
    """The prompt of a turn that adds *length* tokens to what was *said*, and names of its blocks and its answer's.

    *said* has the number of tokens so far, and the names of the blocks of the first turn, if that had any.
    """
    names, size = named
    if not said:
        said += [0, names[:length // size]]
    prompt = said[0] + length
    said[0] = prompt + output
    first = said[1]
    return prompt, first + tuple((session, place) for place in range(len(first), said[0] // size))


def _arrival(row: Mapping[str, Any], turn_before: float | None, lines: Lines) -> float:
    if turn_before is not None and all(row.get(name) is None for name in _TIME):
        return turn_before
    return moment(member(row, _TIME, lines), "timestamp", lines, per_second=1000)


def _refuse_texts(row: Mapping[str, Any], lines: Lines) -> None:
    for name in _TEXT:
        if name in row:
            raise lines.error(f"has {name}; ksim needs lengths: count its tokens and write them as input_length")
    if row.get("wait_for"):
        raise lines.error("waits for other rows (wait_for), which ksim does not read; use session_id and delay")
