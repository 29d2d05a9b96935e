"""What the replies of both APIs have in common, in vLLM's shapes."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from attrs import frozen

from ksim.server.openai.replies.answer import Answer
from ksim.server.openai.replies.chunks import Chunk, plain_chunks, split_event, sse_event
from ksim.server.openai.replies.logprobs import Logprobs
from ksim.server.openai.replies.reply import Head, WholeReply, usage
from ksim.server.openai.requests.fields import GenerateFields
from ksim.server.text.tokenizer import Tokenizer

__all__ = ["ReplyFormat"]

#: Stands for the text of a chunk; ids come from HTTP headers, which cannot contain it.
_MARK = "\u241a"

F = TypeVar("F", bound=GenerateFields)


@frozen
class ReplyFormat(Generic[F]):
    """How an API writes `answers` to what was `asked` for.  Subclasses have the shapes of completions and of chats."""

    asked: F
    head: Head
    tokenizer: Tokenizer
    answers: Sequence[Answer]

    #: The `object` of a chunk, and of a whole reply.
    CHUNK_OBJECT: ClassVar[str] = ""
    OBJECT: ClassVar[str] = ""

    @abstractmethod
    def choice(self, choice: int, text: str, last: bool) -> dict[str, Any]:
        """A choice of a chunk, with this *text*; the *last* one of a choice has its reason to finish."""

    @abstractmethod
    def chunk(self, choice: int, begin: int, end: int) -> bytes:
        """A chunk with the tokens of a choice from *begin* on to before *end*, and all that was asked for."""

    @property
    @abstractmethod
    def plain(self) -> bool:
        """Whether chunks differ in their text alone, so that the rest can be made in advance."""

    @property
    def chunks(self) -> Chunk:
        """What makes chunks."""
        return plain_chunks(self.answers, self._framed) if self.plain else self.chunk

    def _framed(self, choice: int, last: bool) -> tuple[bytes, bytes]:
        return split_event(self.with_choice(self.choice(choice, _MARK, last), last), _MARK)

    def with_choice(self, choice: dict[str, Any], last: bool, used: dict[str, Any] | None = None) -> dict[str, Any]:
        """A chunk with one choice, and usage if it was *used* up to here."""
        return self.table([choice], used, last and not self.asked.wants_usage, {"kv_transfer_params": None})

    def table(self, choices: list[dict[str, Any]], used: dict[str, Any] | None = None, fingerprint: bool = False,
              more: dict[str, Any] | None = None) -> dict[str, Any]:
        """A chunk with these choices, the usage so far, the fingerprint, and *more* fields."""
        head = self.head
        table = {"id": head.id, "object": self.CHUNK_OBJECT, "created": head.created, "model": head.model,
                 "choices": choices}
        return table | ({"usage": used} if used else {}) | (
            {"system_fingerprint": head.fingerprint} if fingerprint else {}) | (more or {})

    def chunk_of(self, choice: dict[str, Any], last: bool, prompt_tokens: int, tokens: int) -> bytes:
        """The bytes of a chunk with one choice, and usage up to so many *tokens* if that is asked for."""
        used = usage(prompt_tokens, tokens) if self.asked.wants_running_usage else None
        return sse_event(self.with_choice(choice, last, used))

    @abstractmethod
    def whole_choice(self, choice: int) -> dict[str, Any]:
        """A choice of a whole reply."""

    def body(self, reply: WholeReply) -> dict[str, Any]:
        """A whole reply."""
        head = self.head
        return {"id": head.id, "object": self.OBJECT, "created": head.created, "model": head.model,
                "choices": [self.whole_choice(choice) for choice in range(len(self.answers))], "service_tier": None,
                "system_fingerprint": head.fingerprint, "usage": reply.usage, **self.prompt_fields(),
                "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}

    def prompt_fields(self) -> dict[str, Any]:
        """The fields of a whole reply that describe its prompt."""
        return {}

    def closing(self, prompt_tokens: int, cached: int | None) -> bytes:
        """The chunk with the usage of the request, if it is asked for; *cached* is None if that is not reported."""
        if not self.asked.wants_usage:
            return b""
        used = usage(prompt_tokens, sum(len(answer.ids) for answer in self.answers))
        details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
        return sse_event(self.table([], used | details, True))

    def logprobs(self, number: int | None) -> Logprobs:
        """Makes up log-probabilities, with this *number* of likeliest tokens."""
        return Logprobs(self.tokenizer, number or 0, bool(self.asked.return_tokens_as_token_ids))
