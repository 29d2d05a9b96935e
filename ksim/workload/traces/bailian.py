"""Bailian's JSON lines (Qwen): times in seconds, ids of 16-token blocks, chats that follow a parent chat.

https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon
"""

from collections.abc import Iterator

from ksim.workload.jsonl import first_object, member, objects
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, chunk_names, count, moment

__all__ = ["Bailian"]

_CHUNK_TOKENS = 16
_ROOT = "-1"
#: Chats that are remembered for later turns; a limit, so that memory does not grow with the trace.
_CHATS = 100_000


class Bailian:
    """Reads a chat and all its follow-up chats as one session, with the recorded arrivals.

    A turn whose parent is not in the file (or no longer remembered) begins a session
    named after its parent.  Two answers to one turn follow each other.
    """

    example = (
        '{"chat_id": 41, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 20, "output_length": 13, '
        '"type": "text", "turn": 1, "hash_ids": [8, 9]}\n'
        '{"chat_id": 97, "parent_chat_id": 41, "timestamp": 72.5, "input_length": 33, "output_length": 1, '
        '"type": "text", "turn": 2, "hash_ids": [8, 10, 11]}\n'
    )

    time_unit = "s"
    empty = "error"

    def recognises(self, first: str) -> bool:
        row = first_object(first)
        return "chat_id" in row and "input_length" in row

    def rows(self, lines: Lines, chunk_tokens: int | None) -> Iterator[Row]:
        size = chunk_tokens or _CHUNK_TOKENS
        roots: dict[str, str] = {}
        for row in objects(lines):
            chat, parent = str(member(row, ("chat_id",), lines)), str(row.get("parent_chat_id", _ROOT))
            root = chat if parent == _ROOT else roots.get(parent, parent)
            roots[chat] = root
            if len(roots) > _CHATS:
                del roots[next(iter(roots))]
            prompt = count(member(row, ("input_length",), lines), "input_length", lines)
            yield Row(moment(member(row, ("timestamp",), lines), "timestamp", lines), prompt,
                      count(member(row, ("output_length",), lines), "output_length", lines),
                      chunk_names(row.get("hash_ids"), prompt, size, lines), size, session=root)
