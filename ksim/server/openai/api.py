"""From the bodies of requests to requests of a live fleet, and the replies that wait for their tokens."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from time import time
from typing import Any

from attrs import define, evolve, field, frozen

from ksim.flow.events import Admitted
from ksim.flow.gateway import Refused
from ksim.flow.request import Request
from ksim.server.errors import ApiError
from ksim.server.live.live import Handle, Live
from ksim.server.openai.intake import Intake
from ksim.server.openai.replies.author import Author
from ksim.server.openai.replies.chat_format import ChatFormat
from ksim.server.openai.replies.completion_format import CompletionFormat
from ksim.server.openai.replies.lengths import Lengths
from ksim.server.openai.replies.reply import Head, Reply
from ksim.server.openai.requests.checks import check_chat, check_completion
from ksim.server.openai.requests.fields import (
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    GenerateFields,
    TokenizeFields,
    missing,
    read,
)
from ksim.server.openai.requests.messages import chat_of
from ksim.server.openai.requests.prompts import (
    Prompt,
    Remember,
    chat_prompt,
    check_asked,
    check_ids,
    check_text,
    completion_prompts,
)
from ksim.server.openai.served_model import Served
from ksim.server.text.chat import Chat
from ksim.server.text.tokenizer import Tokenizer

__all__ = ["Api", "Generation"]

#: vLLM's default of `max_tokens` of a completion.
_DEFAULT_MAX_TOKENS = 16
#: `/tokenize` takes texts of so many tokens, or of the context if that is longer: the event loop waits meanwhile.
_LONG_TEXT = 2**17


@frozen
class Generation:
    """A `reply`, and the `requests` whose tokens it waits for, one for each prompt."""

    reply: Reply
    requests: Sequence[Request]


@define(eq=False)
class Api:
    """The OpenAI API of a `live` fleet: reads bodies, starts and aborts requests, and has answers made up.

    The same requests in the same order get the same answers, for the same `seed`.  `remember` is called with the name
    and the tokens of each block, and `on_abort` with the number of each aborted request.  If it `tells_cached`, usage
    has the number of prompt tokens that were in the prefix cache.
    """

    live: Live
    served: Served
    tokenizer: Tokenizer
    seed: int = 0
    remember: Remember | None = None
    on_abort: Callable[[int], object] = lambda request: None
    tells_cached: bool = False
    clock: Callable[[], float] = time
    _intake: Intake = field(init=False)
    _numbers: "itertools.count[int]" = field(factory=itertools.count, init=False)
    _refusal_statuses: dict[int, int] = field(factory=dict, init=False)  # of HTTP, by request
    _replies: dict[int, Reply] = field(factory=dict, init=False)  # to requests that have not begun

    def __attrs_post_init__(self) -> None:
        lengths = Lengths(self.live.fleet.scenario.workload, self.seed)
        self._intake = Intake(self.live, self.served, Author(self.tokenizer, self.seed), lengths, self.remember)
        self.live.log.subscribe(Refused, lambda event: self._refusal_statuses.update({event.request_id: event.status}))
        if self.tells_cached:
            self.live.log.subscribe(Admitted, self._admitted)

    def completion(self, body: Any, headers: Mapping[str, str]) -> Generation:
        """Read the body of `/v1/completions`; raises ApiError if it cannot be answered."""
        if isinstance(body, dict):
            check_completion(body)
        asked = read(CompletionFields, body)
        if asked.max_tokens is None:
            asked = evolve(asked, max_tokens=_DEFAULT_MAX_TOKENS)
        model, adapter = self._model(asked)
        check_asked(asked, asked.max_tokens, self.served.max_model_len, "max_tokens")
        prompts = [prompt.truncated(asked, self.served.max_model_len) for prompt in completion_prompts(
            asked, self.tokenizer, self.served.vocabulary, self.served.max_model_len)]
        most = 1 if asked.echo and asked.max_tokens == 0 else asked.max_tokens
        prepared = [self._intake.prepare(asked, prompt, most, adapter, headers, len(prompts)) for prompt in prompts]
        answers = [answer for one in prepared for answer in one.answers]
        made = CompletionFormat(asked, self._head("cmpl", model, asked, headers), self.tokenizer, answers, prompts,
                                [one.tokens for one in prepared])
        return Generation(made.reply, [one.request for one in prepared])

    def chat(self, body: Any, headers: Mapping[str, str]) -> Generation:
        """Read the body of `/v1/chat/completions`; raises ApiError if it cannot be answered."""
        if isinstance(body, dict):
            check_chat(body)
        asked = read(ChatFields, body)
        model, adapter = self._model(asked)
        name = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
        most: int | None = getattr(asked, name)
        check_asked(asked, most, self.served.max_model_len, name)
        chat = chat_of(asked)
        prompt = self._prompt(chat).truncated(asked, self.served.max_model_len)
        prepared = self._intake.prepare(asked, prompt, most, adapter, headers)
        head = self._head("chatcmpl", model, asked, headers)
        made = ChatFormat(asked, head, self.tokenizer, prepared.answers, chat, prompt, prepared.tokens)
        return Generation(made.reply, [prepared.request])

    def _model(self, asked: GenerateFields) -> tuple[str, str]:
        if asked.stream and asked.use_beam_search:
            raise ApiError("Streaming is not currently supported with beam search", 400, "BadRequestError")
        return self.served.model(asked.model)

    def _prompt(self, chat: Chat) -> Prompt:
        if chat.images:
            self.served.check_images()
        return chat_prompt(chat, self.tokenizer, self.served.max_model_len)

    def start(self, generation: Generation, came: float | None = None) -> list[Handle]:
        """Send the requests of *generation*, which *came* at this time of the wall clock."""
        reply, listeners = generation.reply, generation.reply.listeners
        handles = [self.live.submit(request, listener, came)
                   for request, listener in zip(generation.requests, listeners, strict=True)]
        numbers = {listener.first: handle.request.id for listener, handle in zip(listeners, handles, strict=True)}
        if self.tells_cached:
            self._replies.update((handle.request.id, reply) for handle in handles)
        reply.refusal = lambda first: self._refusal(numbers[first])
        return handles

    def _admitted(self, event: Admitted) -> None:
        if (reply := self._replies.pop(event.request_id, None)) is not None:
            reply.cached = event.cached + (reply.cached or 0)

    def abort(self, handles: Sequence[Handle]) -> None:
        """Abort the requests of a client that has disconnected, except those that have ended."""
        for handle in handles:
            self._replies.pop(handle.request.id, None)
            if handle.request.id in self.live.handles:
                self.live.abort(handle)
                self.on_abort(handle.request.id)

    def _refusal(self, number: int) -> tuple[int, str]:
        """The status and the type of the error for a refused request: 429 by flow control, 400 by an engine."""
        self._replies.pop(number, None)
        status = self._refusal_statuses.pop(number, 400)
        return status, "BadRequestError" if status == 400 else ""

    def _head(self, kind: str, model: str, asked: GenerateFields, headers: Mapping[str, str]) -> Head:
        own = blake2b(f"{self.seed} {next(self._numbers)}".encode(), digest_size=8).hexdigest()
        name = headers.get("x-request-id") or asked.request_id or own
        return Head(f"{kind}-{name}", int(self.clock()), model, self.served.fingerprint)

    def tokenize(self, body: Any) -> dict[str, Any]:
        """What `/tokenize` answers."""
        asked = read(TokenizeFields, body)
        self.served.model(asked.model)
        if asked.messages is None and asked.prompt is None:
            raise missing("prompt", body)
        if asked.messages is not None:
            ids = self._prompt(chat_of(asked)).ids
        else:
            check_text(len(asked.prompt or ""), self.tokenizer, max(self.served.max_model_len, _LONG_TEXT))
            ids = self.tokenizer.encode(asked.prompt or "", asked.add_special_tokens is not False)
        strings = [self.tokenizer.piece(number) for number in ids] if asked.return_token_strs else None
        return {"count": len(ids), "max_model_len": self.served.max_model_len, "tokens": ids, "token_strs": strings}

    def detokenize(self, body: Any) -> dict[str, Any]:
        """What `/detokenize` answers."""
        asked = read(DetokenizeFields, body)
        self.served.model(asked.model)
        check_ids(asked.tokens, max(self.tokenizer.vocabulary, self.served.vocabulary))
        return {"prompt": self.tokenizer.decode(asked.tokens)}
