"""Streamed replies: server-sent events, one for each step that gives a sequence tokens."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attrs import define, field

from ksim.server.errors import ApiError
from ksim.server.openai.replies.answer import Answer
from ksim.server.openai.replies.reply import Reply, to_json

__all__ = ["Chunk", "StreamedReply", "plain_chunks", "split_event", "sse_event"]

#: Called with a choice and its first and last token (exclusive); returns the bytes of the chunk.
Chunk = Callable[[int, int, int], bytes]
_DONE = b"data: [DONE]\n\n"


@define(eq=False)
class StreamedReply(Reply):
    """A reply in chunks: `opening` goes out with the first tokens, then one `chunk` per step and choice.

    `closing` makes the last chunk before [DONE], if there is one.
    """

    opening: bytes
    chunk: Chunk
    closing: Callable[[int | None], bytes]
    _begun: bool = field(default=False, init=False)
    _done: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._done = [0] * len(self.answers)

    def tokens(self, choice: int, count: int) -> None:
        if self.over:
            return
        begin = self._done[choice]
        end = self._done[choice] = begin + count
        data = self.chunk(choice, begin, end)
        if not self._begun:
            self._begin()
            data = self.opening + data
        self.sink.write(data)

    def _begin(self) -> None:
        self._begun = True
        self.sink.start(200, "text/event-stream; charset=utf-8")

    def complete(self) -> None:
        if not self._begun:
            self._begin()
        self.sink.write(self.closing(self.cached) + _DONE, True)

    def failed(self, error: ApiError) -> None:
        if self.over:
            return
        self.over = True
        if self._begun:
            self.sink.write(error.event + _DONE, True)
        else:
            self.sink.whole(error.status, to_json(error.body))


def sse_event(table: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + to_json(table) + b"\n\n"


def split_event(table: dict[str, Any], mark: str) -> tuple[bytes, bytes]:
    """The bytes of a chunk before and after the text *mark*."""
    before, _, after = sse_event(table).partition(mark.encode())
    return before, after


def plain_chunks(answers: Sequence[Answer], framed: Callable[[int, bool], tuple[bytes, bytes]]) -> Chunk:
    """Chunks that differ in their text alone: *framed* gives the bytes before and after it.

    *framed* is called with each choice, and whether it is its last chunk.
    """
    frames = [(*framed(choice, False), *framed(choice, True)) for choice in range(len(answers))]
    return partial(_plain, [(answer.escaped, *frame) for answer, frame in zip(answers, frames, strict=True)])


def _plain(choices: Sequence[tuple[Sequence[bytes], bytes, bytes, bytes, bytes]], choice: int, begin: int,
           end: int) -> bytes:
    pieces, before, after, last_before, last_after = choices[choice]
    text = pieces[begin] if end - begin == 1 else b"".join(pieces[begin:end])
    return last_before + text + last_after if end >= len(pieces) else before + text + after
