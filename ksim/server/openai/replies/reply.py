"""Replies: the tokens of a live fleet become chunks of a stream, or one body."""

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attrs import define, field, frozen

from ksim.server.errors import ApiError
from ksim.server.openai.replies.answer import Answer
from ksim.server.openai.requests.prompts import Prompt

__all__ = ["PromptListener", "Head", "Reply", "Sink", "WholeReply", "to_json", "usage"]


class Sink(Protocol):
    """Where a reply goes: an HTTP response (ksim.server.http.sink)."""

    def start(self, status: int, kind: str) -> None: ...

    def write(self, piece: bytes, last: bool = False) -> None: ...

    def whole(self, status: int, body: bytes) -> None: ...


@frozen
class Head:
    """What all parts of a reply have: `id`, `created`, `model` and system fingerprint."""

    id: str
    created: int
    model: str
    fingerprint: str


def to_json(table: Any) -> bytes:
    """JSON as pydantic writes it."""
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def usage(prompt: int, output: int) -> dict[str, Any]:
    """The `usage` of a chunk."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


@frozen
class PromptListener:
    """Listens to the request for one prompt; its sequences are the choices of `reply` from the `first` on."""

    reply: "Reply"
    first: int

    def tokens(self, count: int, time: float, sequence: int) -> None:
        self.reply.tokens(self.first + sequence, count)

    def finished(self, reason: str, time: float) -> None:
        self.reply.finished(reason)

    def refused(self, why: str) -> None:
        self.reply.failed(ApiError(why, *self.reply.refusal(self.first)))


@define(eq=False)
class Reply:
    """The reply to `prompts`, each of which has the same number of `answers`.

    `prompt_tokens` are the tokens of each prompt with its images; `cached` of them were in the prefix cache, if that is
    reported.  `refusal` gives the status and type of the error if a choice's request is refused.
    """

    head: Head
    prompts: Sequence[Prompt]
    prompt_tokens: Sequence[int]
    answers: Sequence[Answer]
    sink: Sink = field(init=False)
    refusal: Callable[[int], tuple[int, str]] = field(default=lambda first: (400, "BadRequestError"), init=False)
    over: bool = field(default=False, init=False)
    cached: int | None = field(default=None, init=False)
    _left: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._left = len(self.prompts)

    @property
    def listeners(self) -> list[PromptListener]:
        """A listener for each prompt."""
        width = len(self.answers) // len(self.prompts)
        return [PromptListener(self, place * width) for place in range(len(self.prompts))]

    @abstractmethod
    def tokens(self, choice: int, count: int) -> None:
        """The client gets so many further tokens of a choice."""

    @abstractmethod
    def complete(self) -> None:
        """Write what is left after all sequences have ended."""

    @abstractmethod
    def failed(self, error: ApiError) -> None:
        """Write an error, and nothing more."""

    def finished(self, reason: str) -> None:
        """The sequences of a prompt have ended."""
        self._left -= 1
        if self.over:
            return
        if reason == "error":
            self.failed(ApiError("Internal server error", 500, "InternalServerError"))
        elif not self._left:
            self.over = True
            self.complete()

    @property
    def output_tokens(self) -> int:
        return sum(len(answer.ids) for answer in self.answers)


@define(eq=False)
class WholeReply(Reply):
    """A reply in one piece, which `body` makes when all sequences have ended."""

    body: Callable[["WholeReply"], dict[str, Any]]

    def tokens(self, choice: int, count: int) -> None:
        pass

    def complete(self) -> None:
        self.sink.whole(200, to_json(self.body(self)))

    def failed(self, error: ApiError) -> None:
        if not self.over:
            self.over = True
            self.sink.whole(error.status, to_json(error.body))

    @property
    def usage(self) -> dict[str, Any]:
        """The `usage` of a whole reply."""
        details = None if self.cached is None else {
            "cached_tokens": self.cached, "created_cache_tokens": None, "multimodal_tokens": None}
        return usage(sum(self.prompt_tokens), self.output_tokens) | {
            "prompt_tokens_details": details, "completion_tokens_details": None}
