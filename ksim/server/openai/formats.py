"""Replies of both APIs in vLLM's shapes: whole bodies, streams of server-sent events, and made-up log-probabilities."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import exp, log
from typing import Any, ClassVar, Generic, TypeVar

from attrs import define, field, frozen

from ksim.server.errors import ApiError
from ksim.server.openai.fields import ChatFields, CompletionFields, GenerateFields
from ksim.server.openai.prompts import ApiPrompt
from ksim.server.openai.reply import MadeUpAnswer, Reply, ReplyHead, WholeReply, to_json, usage
from ksim.server.text import Chat, Tokenizer

__all__ = ["Chunk", "StreamedReply", "plain_chunks", "split_event", "sse_event", "Logprobs", "ReplyFormat",
           "ChatFormat", "CompletionFormat"]


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

    STREAMS: ClassVar[bool] = True

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
            self.sink.fail(error)


def sse_event(table: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + to_json(table) + b"\n\n"


def split_event(table: dict[str, Any], mark: str) -> tuple[bytes, bytes]:
    """The bytes of a chunk before and after the text *mark*."""
    before, _, after = sse_event(table).partition(mark.encode())
    return before, after


def plain_chunks(answers: Sequence[MadeUpAnswer], framed: Callable[[int, bool], tuple[bytes, bytes]]) -> Chunk:
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


#: Tokens for a request that asks for the whole vocabulary (-1).
_MOST = 20


@define
class Logprobs:
    """Makes up log-probabilities of tokens and of the `most` likeliest others; `as_ids` shows tokens as ids."""

    tokenizer: Tokenizer
    most: int
    as_ids: bool = False

    def chat(self, ids: Sequence[int], pieces: Sequence[str]) -> dict[str, Any]:
        """The log-probabilities of sampled tokens in the shape of a chat."""
        places = [{**likely[0], "top_logprobs": likely[:self._number]} for likely in self._entries(ids, pieces)]
        return {"content": places}

    def completion(self, ids: Sequence[int], pieces: Sequence[str], start: int, first: bool) -> dict[str, Any]:
        """The same for a completion whose text starts at *start*; the *first* token of a prompt has none."""
        tokens, offsets = [self._shown(number, piece) for number, piece in zip(ids, pieces, strict=True)], list[int]()
        for token in tokens:
            offsets.append(start)
            start += len(token)
        alternatives = [{entry["token"]: entry["logprob"] for entry in likely[:max(self._number, 1)]}
                        for likely in self._entries(ids, pieces)]
        own: list[float | None] = [self._logprob(number) for number in ids]
        tops: list[dict[str, float] | None] = [*alternatives]
        if first and ids:
            own[0] = tops[0] = None
        return {"text_offset": offsets, "token_logprobs": own, "tokens": tokens, "top_logprobs": tops}

    def prompt(self, ids: Sequence[int]) -> list[dict[str, Any] | None]:
        """The log-probabilities of a prompt, by token ids."""
        pieces = [self.tokenizer.piece(number) for number in ids]
        places = [{str(number): {"logprob": entry["logprob"], "rank": rank, "decoded_token": entry["token"]}
                   for rank, (number, entry) in enumerate(zip(self._likely(own), likely, strict=True), 1)}
                  for own, likely in zip(ids, self._entries(ids, pieces), strict=True)]
        return [None, *places[1:]]

    @property
    def _number(self) -> int:
        return _MOST if self.most < 0 else self.most

    def _likely(self, number: int) -> list[int]:
        """The token itself, and the others that are likeliest."""
        words = self.tokenizer.next_ids
        others = [word for at in range(self._number) if (word := words[(number + at) % len(words)]) != number]
        return [number, *dict.fromkeys(others)][:max(self._number, 1)]

    def _entries(self, ids: Sequence[int], pieces: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        """For each token, the entries of itself and of the likeliest others, in the shape of a chat."""
        for number, piece in zip(ids, pieces, strict=True):
            yield [self._entry(other, piece if other == number else self.tokenizer.piece(other), value)
                   for value, other in self.ranked(number)]

    def ranked(self, number: int) -> list[tuple[float, int]]:
        """The log-probabilities and ids of a token and of the others that are likeliest."""
        own = self._logprob(number)
        return [(own if other == number else log((1 - exp(own)) / 2**rank), other)
                for rank, other in enumerate(self._likely(number))]

    def _entry(self, number: int, piece: str, value: float) -> dict[str, Any]:
        token = self._shown(number, piece)
        return {"token": token, "logprob": value, "bytes": list(token.encode("utf-8", "replace"))}

    def _shown(self, number: int, piece: str) -> str:
        return f"token_id:{number}" if self.as_ids else piece

    @staticmethod
    def _logprob(number: int) -> float:
        """The log of a probability above one half."""
        return -(1 + number * 2654435761 % 60) / 100


#: Stands for the text of a chunk; ids come from HTTP headers, which cannot contain it.
_MARK = "\u241a"

F = TypeVar("F", bound=GenerateFields)


@frozen
class ReplyFormat(Generic[F]):
    """How an API writes `answers` to what was `asked` for.  Subclasses have the shapes of completions and of chats."""

    asked: F
    head: ReplyHead
    tokenizer: Tokenizer
    answers: Sequence[MadeUpAnswer]

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


@frozen
class ChatFormat(ReplyFormat[ChatFields]):
    """The answers to `chat`, whose prompt has `prompt_tokens` with its images."""

    chat: Chat
    prompt: ApiPrompt
    prompt_tokens: int

    CHUNK_OBJECT: ClassVar[str] = "chat.completion.chunk"
    OBJECT: ClassVar[str] = "chat.completion"

    @property
    def reply(self) -> Reply:
        """The reply, streamed if the client asked for that."""
        common = self.head, [self.prompt], [self.prompt_tokens], self.answers
        if not self.asked.stream:
            return WholeReply(*common, self.body)
        closing = partial(self.closing, self.prompt_tokens)
        return StreamedReply(*common, b"".join(self._openings()), self.chunks, closing)

    @property
    def _role(self) -> str:
        return self.chat.messages[-1][0] if not self.chat.answered and self.chat.messages else "assistant"

    @property
    def _echo(self) -> str:
        """The last message, if it is echoed."""
        last = self.chat.messages[-1] if self.chat.messages else ("", "")
        return last[1] if self.asked.echo and last[0] == self._role else ""

    def _openings(self) -> list[bytes]:
        """The chunks before the first token: the role of each choice, and the echo."""
        deltas = [{"role": self._role, "content": ""}, *([{"content": self._echo}] if self._echo else [])]
        used = usage(self.prompt_tokens, 0) if self.asked.wants_running_usage else None
        chunks = []
        for number, delta in enumerate(deltas):
            ids = list(self.prompt.ids) if self.asked.return_token_ids else None
            more = {"prompt_token_ids": ids, "prompt_text": None} if not number else {}
            for choice in range(len(self.answers)):
                opening = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
                chunks.append(sse_event(self.table([opening], used, False, more)))
        return chunks

    @property
    def plain(self) -> bool:
        return not (self.asked.logprobs or self.asked.return_token_ids or self.asked.wants_running_usage)

    def choice(self, choice: int, text: str, last: bool) -> dict[str, Any]:
        answer = self.answers[choice]
        ends = {"finish_reason": answer.reason, "stop_reason": answer.stop} if last else {"finish_reason": None}
        more = {"weight_versions": None} if last else {}
        return {"index": choice, "delta": {"content": text}, "logprobs": None, **ends, "token_ids": None, **more}

    def chunk(self, choice: int, begin: int, end: int) -> bytes:
        asked, answer = self.asked, self.answers[choice]
        ids, pieces, last = answer.ids[begin:end], answer.pieces[begin:end], end >= len(answer.ids)
        made = self.choice(choice, "".join(pieces), last)
        if asked.logprobs:
            made["logprobs"] = self._logprobs(ids, pieces)
        if asked.return_token_ids:
            made["token_ids"] = list(ids)
        return self.chunk_of(made, last, self.prompt_tokens, end)

    def _logprobs(self, ids: Sequence[int], pieces: Sequence[str]) -> dict[str, Any]:
        """The log-probabilities of these tokens."""
        return self.logprobs(self.asked.top_logprobs).chat(ids, pieces)

    def prompt_fields(self) -> dict[str, Any]:
        asked, ids = self.asked, self.prompt.ids
        wanted = asked.top_logprobs or 0 if asked.prompt_logprobs is None and asked.echo else asked.prompt_logprobs
        return {"prompt_logprobs": None if wanted is None else self.logprobs(wanted).prompt(ids),
                "prompt_token_ids": list(ids) if asked.return_token_ids else None, "prompt_text": None}

    def whole_choice(self, choice: int) -> dict[str, Any]:
        answer = self.answers[choice]
        message = {"role": self._role, "content": self._echo + answer.text, "refusal": None, "annotations": None,
                   "audio": None, "function_call": None, "reasoning": None}
        return {"index": choice, "message": message,
                "logprobs": self._logprobs(answer.ids, answer.pieces) if self.asked.logprobs else None,
                "finish_reason": answer.reason, "stop_reason": answer.stop,
                "token_ids": list(answer.ids) if self.asked.return_token_ids else None, "routed_experts": None,
                "weight_versions": None}


@frozen
class CompletionFormat(ReplyFormat[CompletionFields]):
    """The answers to `prompts`, the same number to each.  `prompt_tokens` are the tokens of each prompt."""

    prompts: Sequence[ApiPrompt]
    prompt_tokens: Sequence[int]

    CHUNK_OBJECT: ClassVar[str] = "text_completion"
    OBJECT: ClassVar[str] = "text_completion"

    @property
    def reply(self) -> Reply:
        """The reply, streamed if the client asked for that."""
        common = self.head, self.prompts, self.prompt_tokens, self.answers
        if not self.asked.stream:
            return WholeReply(*common, self.body)
        return StreamedReply(*common, b"", self.chunks, partial(self.closing, sum(self.prompt_tokens)))

    @property
    def plain(self) -> bool:
        asked = self.asked
        return asked.logprobs is None and not (asked.echo or asked.return_token_ids or asked.wants_running_usage)

    def choice(self, choice: int, text: str, last: bool) -> dict[str, Any]:
        answer = self.answers[choice]
        return {"index": choice, "text": text, "logprobs": None, "finish_reason": answer.reason if last else None,
                "stop_reason": answer.stop if last else None, "prompt_token_ids": None, "token_ids": None,
                "weight_versions": None}

    def chunk(self, choice: int, begin: int, end: int) -> bytes:
        asked, answer, last = self.asked, self.answers[choice], end >= len(self.answers[choice].ids)
        shown, prompt = self._parts(choice, begin, end), self.prompts[self._prompt(choice)]
        made = self.choice(choice, "".join(shown[1]), last)
        if asked.logprobs is not None:
            start = 0 if begin == 0 else self._offset(choice, begin)
            made["logprobs"] = self.logprobs(asked.logprobs).completion(*shown, start, bool(asked.echo) and begin == 0)
        if asked.return_token_ids:
            made["token_ids"] = list(answer.ids[begin:end])
        if (asked.return_token_ids or asked.echo) and begin == 0:
            made["prompt_token_ids"] = list(prompt.ids)
        return self.chunk_of(made, last, self.prompt_tokens[self._prompt(choice)], end)

    def _prompt(self, choice: int) -> int:
        """The place of the prompt that a choice answers."""
        return choice * len(self.prompts) // len(self.answers)

    def _parts(self, choice: int, begin: int, end: int) -> tuple[Sequence[int], Sequence[str]]:
        """The token ids and pieces of text from *begin* on to before *end*, and before the first ones the echo."""
        answer, nothing = self.answers[choice], self.asked.max_tokens == 0
        ids, pieces = ([], []) if nothing else (list(answer.ids[begin:end]), list(answer.pieces[begin:end]))
        if not self.asked.echo or begin:
            return ids, pieces
        prompt = self.prompts[self._prompt(choice)]
        return [*prompt.ids, *ids], [*self._pieces(prompt), *pieces]

    def _pieces(self, prompt: ApiPrompt) -> list[str]:
        """A prompt's text, token by token; if the client sent a text, all of it is in the first piece."""
        if prompt.text is not None and self.asked.logprobs is None:
            return [prompt.text, *[""] * (len(prompt.ids) - 1)]
        pieces = [self.tokenizer.piece(number) for number in prompt.ids]
        return [pieces[0].removeprefix(" "), *pieces[1:]] if pieces else []

    def _offset(self, choice: int, begin: int) -> int:
        """How many characters come before a token."""
        return sum(map(len, self._parts(choice, 0, begin)[1]))

    def whole_choice(self, choice: int) -> dict[str, Any]:
        asked, answer, prompt = self.asked, self.answers[choice], self.prompts[self._prompt(choice)]
        ids, pieces = self._parts(choice, 0, len(answer.ids))
        made = self.choice(choice, "".join(pieces), True)
        del made["prompt_token_ids"], made["token_ids"], made["weight_versions"]
        if asked.logprobs is not None:
            made["logprobs"] = self.logprobs(asked.logprobs).completion(ids, pieces, 0, bool(asked.echo))
        wanted = asked.logprobs if asked.prompt_logprobs is None and asked.echo else asked.prompt_logprobs
        return made | {
            "token_ids": list(answer.ids) if asked.return_token_ids else None,
            "prompt_logprobs": None if wanted is None else self.logprobs(wanted).prompt(prompt.ids),
            "prompt_token_ids": list(prompt.ids) if asked.return_token_ids else None,
            "routed_experts": None, "weight_versions": None}
