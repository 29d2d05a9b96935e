"""Replies to clients, and the answers in them, which are made up before their first token is due.

An `Author` makes an answer of words of one token each, as long as `AnswerLengths` says, up to a stop string or token.
A `Reply` is written as the tokens of a live fleet come, in chunks or as a whole.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, repeat
from math import gcd
from typing import Any, ClassVar, Protocol, TypeVar

from attrs import define, field, frozen

from ksim.server.errors import ApiError
from ksim.server.live import Handle
from ksim.server.openai.fields import GenerateFields
from ksim.server.openai.prompts import ApiPrompt
from ksim.server.text import Tokenizer
from ksim.workload.replay import Workload


@frozen
class MadeUpAnswer:
    """The token `ids` of a sequence, and the `pieces` that they add to its text, also `escaped` as in JSON.

    `reason` is the finish_reason, and `stop` the stop string or stop token that has ended the answer, if one has.
    """

    ids: Sequence[int]
    pieces: Sequence[str]
    escaped: Sequence[bytes]
    reason: str
    stop: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def escaped(piece: str) -> bytes:
    """*piece* as it is written within a JSON string."""
    return json.dumps(piece)[1:-1].encode()


@frozen
class _Stop:
    """Where `stop` ends an answer: after `tokens` tokens, with its `size` characters behind those `before` it."""

    stop: str | int
    tokens: int
    before: int
    size: int


def stopped_by(answer: MadeUpAnswer, asked: GenerateFields) -> MadeUpAnswer:
    """*answer* up to the first stop token or stop string in it, after `min_tokens`."""
    stops = [*(asked.stop_token_ids or ()), *asked.stops]
    ends = [end for stop in stops if (end := _end(answer, stop, asked.min_tokens)) is not None]
    if not ends:
        return answer
    first = min(ends, key=lambda end: end.tokens)
    visible = first.before + (first.size if asked.include_stop_str_in_output else 0)
    shown = _cut(answer.pieces[:first.tokens], visible)
    return MadeUpAnswer(answer.ids[:first.tokens], shown, [*map(escaped, shown)], "stop", first.stop)


def _end(answer: MadeUpAnswer, stop: str | int, least: int) -> _Stop | None:
    """Where *stop* ends *answer*, which has *least* tokens before it can."""
    if isinstance(stop, int):
        at = next((at for at, token in enumerate(answer.ids) if token == stop and at >= least), None)
        return None if at is None else _Stop(stop, at + 1, sum(map(len, answer.pieces[:at])), len(answer.pieces[at]))
    minimum = sum(map(len, answer.pieces[:least]))
    at = answer.text.find(stop, max(0, minimum - len(stop) + 1))
    if at < 0:
        return None
    tokens, characters = 0, 0
    while characters < at + len(stop):
        characters += len(answer.pieces[tokens])
        tokens += 1
    return _Stop(stop, tokens, at, len(stop))


def _cut(pieces: Sequence[str], visible: int) -> list[str]:
    """*pieces* of which only the first *visible* characters are left."""
    kept, left = list[str](), visible
    for piece in pieces:
        kept.append(piece[:left])
        left -= len(kept[-1])
    return kept


class ReplySink(Protocol):
    """Where a reply goes: an HTTP response (ksim.server.http.streams)."""

    def start(self, status: int, kind: str) -> None: ...

    def write(self, piece: bytes, last: bool = False) -> None: ...

    def whole(self, status: int, body: bytes) -> None: ...

    def fail(self, error: ApiError) -> None: ...


@frozen
class ReplyHead:
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

    @property
    def streams(self) -> bool:
        """Whether tokens go out when they come."""
        return self.reply.STREAMS

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

    head: ReplyHead
    prompts: Sequence[ApiPrompt]
    prompt_tokens: Sequence[int]
    answers: Sequence[MadeUpAnswer]
    sink: ReplySink = field(init=False)
    refusal: Callable[[int], tuple[int, str]] = field(default=lambda first: (400, "BadRequestError"), init=False)
    over: bool = field(default=False, init=False)
    cached: int | None = field(default=None, init=False)
    _left: int = field(init=False)

    #: Whether it is written piece by piece.
    STREAMS: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        self._left = len(self.prompts)

    def begun(self, handles: Sequence[Handle]) -> None:
        """Its requests are on their way."""

    @property
    def listeners(self) -> Sequence[PromptListener]:
        """A listener for each prompt."""
        width = len(self.answers) // len(self.prompts)
        return [PromptListener(self, index * width) for index in range(len(self.prompts))]

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
            self.sink.fail(error)

    @property
    def usage(self) -> dict[str, Any]:
        """The `usage` of a whole reply."""
        details = None if self.cached is None else {
            "cached_tokens": self.cached, "created_cache_tokens": None, "multimodal_tokens": None}
        return usage(sum(self.prompt_tokens), self.output_tokens) | {
            "prompt_tokens_details": details, "completion_tokens_details": None}


T = TypeVar("T")


def _repeated(of: Sequence[T], places: Sequence[int], length: int) -> list[T]:
    """The items at these *places*, repeated until there are *length* of them."""
    return (list(map(of.__getitem__, places)) * -(-length // len(places)))[:length]


@define
class Author:
    """Makes up answers of the words of `tokenizer`, the same ones for the same `seed`.

    An answer goes through all words in an order of its own, and then repeats them, so it is made by copying lists.
    """

    tokenizer: Tokenizer
    seed: int
    _pieces: list[str] = field(init=False)
    _escaped: list[bytes] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._pieces = [f" {word}" for word in self.tokenizer.words]
        self._escaped = [escaped(piece) for piece in self._pieces]

    def answer(self, asked: GenerateFields, key: tuple[int, ...], length: int, most: int, space: bool) -> MadeUpAnswer:
        """An answer of *length* tokens, or of fewer if a stop string or stop token ends it.

        It ends for "length" if *most* tokens were allowed and it has them.  *key* is the sequence's number.  With
        *space* the text begins with a space, if the tokenizer has a token for that.
        """
        places = self._places(key, length)
        ids = _repeated(self.tokenizer.next_ids, places, length)
        pieces, as_json = (_repeated(self._pieces, places, length), _repeated(self._escaped, places, length))
        if not (space and self.tokenizer.leading_space):
            ids[0], pieces[0] = self.tokenizer.first_ids[places[0]], self.tokenizer.words[places[0]]
            as_json[0] = escaped(pieces[0])
        answer = MadeUpAnswer(ids, pieces, as_json, "length" if length >= most else "stop")
        return stopped_by(answer, asked) if asked.stops or asked.stop_token_ids else answer

    def _places(self, key: tuple[int, ...], length: int) -> list[int]:
        """The words it begins with: every so many, from a first one on, until each has come once."""
        drawn = int.from_bytes(blake2b(repr((self.seed, *key)).encode(), digest_size=8).digest())
        size = len(self._pieces)
        stride = next(step for step in range(1 + drawn // size % size, 2 * size + 1) if gcd(step, size) == 1)
        return [at % size for at in range(drawn % size, drawn % size + min(length, size) * stride, stride)]


@define
class AnswerLengths:
    """Draws output lengths of `workload`, the same ones for the same `seed`.

    A trace gives its own lengths in order, again and again.
    """

    workload: Workload
    seed: int
    _draws: Iterator[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._draws = self._drawn()

    def draw(self) -> int:
        """The length of the next answer."""
        return next(self._draws)

    def _drawn(self) -> Iterator[int]:
        synthetic = self.workload.synthetic
        if synthetic is not None:
            return synthetic.output_lengths(self.seed)
        return chain.from_iterable(self._recorded() for _ in repeat(None))

    def _recorded(self) -> Iterator[int]:
        """The lengths of a trace, in its order."""
        return (request.output for request in self.workload.requests(self.seed))
