"""Public traces whose rows name the blocks of their prompts."""

from collections.abc import Hashable, Iterator, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

from attrs import field, frozen
from attrs.validators import in_

from ksim.workload.jsonl import first_object, member, objects
from ksim.workload.lines import Lines
from ksim.workload.rows import Row, chunk_names, count, duration, label, moment, shown

__all__ = ["Mooncake", "Bailian", "Ragpulse"]


_CHUNK_TOKENS = 512
_TIME = ("timestamp", "created_time")
_INPUT = ("input_length", "input_tokens")
_OUTPUT = ("output_length", "output_tokens")
_TEXT = ("text_input", "messages", "payload")


@frozen
class Mooncake:
    """Mooncake's JSON lines, with the sessions that Dynamo and AIPerf added: times in ms, ids of 512-token blocks.

    https://github.com/kvcache-ai/Mooncake and https://docs.nvidia.com/aiperf

    Reads the rows of one `session_id` as its turns.

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
        contexts: dict[str, list[Any]] = {}
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
                prompt, names = _behind(contexts.setdefault(session, []), session, length, output, (names, size))
            yield Row(arrival, prompt, output, names, size, session=session,
                      delay=duration(row.get("delay"), "delay", lines, per_second=1000))


def _behind(so_far: list[Any], session: str, length: int, output: int, named: tuple[tuple[Hashable, ...], int]
            ) -> tuple[int, tuple[Hashable, ...]]:
    """The prompt of a turn that adds *length* tokens to the context *so_far*, and names of its blocks and its answer's.

    *so_far* has the number of tokens so far, and the names of the blocks of the first turn, if that had any.
    """
    names, size = named
    if not so_far:
        so_far += [0, names[:length // size]]
    prompt = so_far[0] + length
    so_far[0] = prompt + output
    first = so_far[1]
    return prompt, first + tuple((session, index) for index in range(len(first), so_far[0] // size))


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


_BAILIAN_CHUNK_TOKENS = 16
_ROOT = "-1"
#: Chats that are remembered for later turns; a limit, so that memory does not grow with the trace.
_CHATS = 100_000


class Bailian:
    """Bailian's JSON lines (Qwen): times in seconds, ids of 16-token blocks, chats that follow a parent chat.

    https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon

    Reads a chat and all its follow-up chats as one session, with the recorded arrivals.

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
        size = chunk_tokens or _BAILIAN_CHUNK_TOKENS
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


_RAGPULSE_CHUNK_TOKENS = 16
#: The publisher's files with the tokens of each piece.
_PIECES = ("1_sys_prompt.jsonl", "2_passages.jsonl", "3_history.jsonl", "4_user_input.jsonl", "5_web_search.jsonl")


class Ragpulse:
    """RAGPulse's JSON lines: times in seconds, and the pieces of each prompt, whose lengths are in files beside it.

    https://github.com/flashserve/RAGPulse

    Reads the rows of one `session_id` as the turns of a session, with the recorded arrivals.

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
        size = chunk_tokens or _RAGPULSE_CHUNK_TOKENS
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
