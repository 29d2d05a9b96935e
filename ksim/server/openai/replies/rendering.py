"""What the replies of both APIs have in common."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from attrs import frozen

from ksim.server.openai.replies.answer import Answer
from ksim.server.openai.replies.chunks import Chunk, event, plain_chunks, split_event
from ksim.server.openai.replies.logprobs import Logprobs
from ksim.server.openai.replies.reply import Head, usage
from ksim.server.openai.requests.fields import GenerateFields
from ksim.server.text.tokenizer import Tokenizer

__all__ = ["Rendering"]

#: Where the text of a chunk goes; no header of HTTP can have it.
_MARK = "\u241a"

F = TypeVar("F", bound=GenerateFields)


@frozen
class Rendering(Generic[F]):
    """Answers to what was `asked` for, as an API writes them."""

    asked: F
    head: Head
    tokenizer: Tokenizer
    answers: Sequence[Answer]

    #: What a chunk calls itself.
    KIND: ClassVar[str] = ""

    @abstractmethod
    def choice(self, choice: int, text: str, last: bool) -> dict[str, Any]:
        """What a chunk says of a choice, with this *text*."""

    @abstractmethod
    def chunk(self, choice: int, begin: int, end: int) -> bytes:
        """A chunk that says more than a text."""

    @property
    @abstractmethod
    def plain(self) -> bool:
        """Whether chunks differ in their text alone."""

    @property
    def chunks(self) -> Chunk:
        """What makes chunks."""
        return plain_chunks(self.answers, self._framed) if self.plain else self.chunk

    def _framed(self, choice: int, last: bool) -> tuple[bytes, bytes]:
        return split_event(self.with_choice(self.choice(choice, _MARK, last), last), _MARK)

    def with_choice(self, choice: dict[str, Any], last: bool, used: dict[str, Any] | None = None) -> dict[str, Any]:
        """A chunk with this choice, the *last* one of it or not."""
        return self.table([choice], used, last and not self.asked.wants_usage, {"kv_transfer_params": None})

    def table(self, choices: list[dict[str, Any]], used: dict[str, Any] | None = None, fingerprint: bool = False,
              more: dict[str, Any] | None = None) -> dict[str, Any]:
        """A chunk with these choices, what was *used* so far, the fingerprint, and *more*."""
        head = self.head
        table = {"id": head.id, "object": self.KIND, "created": head.created, "model": head.model, "choices": choices}
        return table | ({"usage": used} if used else {}) | (
            {"system_fingerprint": head.fingerprint} if fingerprint else {}) | (more or {})

    def closing(self, prompt_tokens: int, cached: int | None) -> bytes:
        """The chunk that says what was used, if it is asked for, and how much of it was *cached*, if that is told."""
        if not self.asked.wants_usage:
            return b""
        used = usage(prompt_tokens, sum(len(answer.ids) for answer in self.answers))
        details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
        return event(self.table([], used | details, True))

    def logprobs(self, number: int | None) -> Logprobs:
        """What makes up log-probabilities of so many likeliest tokens."""
        return Logprobs(self.tokenizer, number or 0, bool(self.asked.return_tokens_as_token_ids))
