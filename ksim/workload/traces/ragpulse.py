"""RAGPulse's JSON lines: times in seconds, and the pieces of each prompt, whose lengths are in files beside it.

https://github.com/flashserve/RAGPulse
"""

from collections.abc import Hashable, Iterator, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

from ksim.workload.jsonl import first_object, member, objects
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, count, label, moment, shown

__all__ = ["RAGPulse"]

_CHUNK_TOKENS = 16
#: The publisher's files with the tokens of each piece.
_PIECES = ("1_sys_prompt.jsonl", "2_passages.jsonl", "3_history.jsonl", "4_user_input.jsonl", "5_web_search.jsonl")


class RAGPulse:
    """Reads the rows of one `session_id` as the turns of a session, with the recorded arrivals.

    `hash_ids` is an object of lists: the pieces of the prompt in their order.
    Prefixes are shared as far as the lengths of the pieces are known.  If a prompt is
    shorter than its pieces, the last ones are cut off.
    """

    example = (
        '{"timestamp": "27", "input_length": 60, "output_length": 12, "hash_ids": {"sys_prompt": [1, 2], '
        '"passages_ids": [7], "history": [], "web_search": [], "user_input": [9]}, "session_id": "a"}\n'
        '{"timestamp": "40", "input_length": 50, "output_length": 9, "hash_ids": {"sys_prompt": [1, 2], '
        '"passages_ids": [8], "history": [], "web_search": [], "user_input": [10]}, "session_id": "b"}\n'
    )
    beside: ClassVar[Mapping[str, str]] = {
        "1_sys_prompt.jsonl": '{"sys_prompt_id": 1, "token_length": 20}\n{"sys_prompt_id": 2, "token_length": 15}\n'}
    time_unit = "s"
    empty = "error"
    remark = "prefixes are shared only as far as 1_sys_prompt.jsonl and similar files are beside the trace"

    def recognises(self, first: str) -> bool:
        pieces = first_object(first).get("hash_ids")
        return isinstance(pieces, dict) and "sys_prompt" in pieces

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        size = chunk_tokens or _CHUNK_TOKENS
        lengths = _lengths(lines.path.parent)
        for row in objects(lines):
            prompt = count(member(row, ("input_length",), lines), "input_length", lines)
            pieces = member(row, ("hash_ids",), lines)
            if not isinstance(pieces, dict) or not all(isinstance(ids, list) for ids in pieces.values()):
                raise lines.error(f"hash_ids is {shown(pieces)}; expected an object of lists such as sys_prompt")
            yield Row(moment(member(row, ("timestamp",), lines), "timestamp", lines), prompt,
                      count(member(row, ("output_length",), lines), "output_length", lines),
                      _chunks(pieces, lengths, prompt, size), size,
                      session=label(row.get("session_id"), "session_id", lines))


def _lengths(folder: Path) -> dict[Hashable, int]:
    """Return the tokens of the pieces in the files of *folder*; files may be missing."""
    lengths: dict[Hashable, int] = {}
    for path in (folder / name for name in _PIECES):
        if path.exists():
            lines = Lines(path)
            for row in objects(lines):
                tokens = count(member(row, ("token_length",), lines), "token_length", lines)
                pieces = [label(value, name, lines) for name, value in row.items() if name != "token_length"]
                lengths |= dict.fromkeys(pieces, tokens)
    return lengths


def _chunks(pieces: Mapping[str, list[Any]], lengths: Mapping[Hashable, int], prompt: int, size: int
            ) -> tuple[Hashable, ...]:
    """Return the names of the full chunks: the pieces in a chunk, and where in the first of them it begins.

    The names end before the first piece of unknown length.
    """
    names: list[str] = []
    for piece in (str(name) for ids in pieces.values() for name in ids):
        if piece not in lengths:
            break
        names.append(piece)
    ends = list(accumulate((lengths[name] for name in names), initial=0))
    total = min(ends[-1], prompt) // size * size
    spans = [(name, begin, end) for name, (begin, end) in zip(names, pairwise(ends), strict=True) if end > begin]
    chunks: list[Hashable] = []
    place = 0
    for begin in range(0, total, size):
        while spans[place][2] <= begin:
            place += 1
        in_chunk = [spans[place][0]]
        last = place
        while spans[last][2] < begin + size:
            last += 1
            in_chunk.append(spans[last][0])
        chunks.append((begin - spans[place][1], *in_chunk))
    return tuple(chunks)
