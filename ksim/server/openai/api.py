"""From the bodies of requests to requests of a live fleet, and the replies that wait for their tokens."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from time import time
from typing import Any

from attrs import define, evolve, field, frozen

from ksim.flow.events import Admitted, Refused
from ksim.flow.request import Request
from ksim.server.errors import ApiError
from ksim.server.live import Handle, Live
from ksim.server.openai.fields import (
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    GenerateFields,
    TokenizeFields,
    check_chat,
    check_completion,
    check_logprobs,
    check_sampling,
    missing,
    read,
)
from ksim.server.openai.formats import ChatFormat, CompletionFormat
from ksim.server.openai.kinds import ServedModel
from ksim.server.openai.prompts import (
    CHUNK,
    ApiPrompt,
    Remember,
    block_names,
    chat_of,
    chat_prompt,
    check_asked,
    check_ids,
    check_text,
    completion_prompts,
)
from ksim.server.openai.reply import AnswerLengths, Author, MadeUpAnswer, Reply, ReplyHead
from ksim.server.text import Chat, Tokenizer

__all__ = ["Intake", "Prepared", "Api", "Generation"]


#: Headers with the tenant of a request (llm-d's), its priority, and its session (vLLM's).
_TENANT, _PRIORITY, _SESSION = "x-gateway-inference-fairness-id", "x-vllm-priority", "x-session-id"

#: Most tokens of all answers to a request: making up more would delay the tokens of others.
_MAX_ANSWER_TOKENS = 2**21


@frozen
class Prepared:
    """A request, how many `tokens` its prompt has with its images, and the answers that were made up for it."""

    request: Request
    tokens: int
    answers: Sequence[MadeUpAnswer]


@define(eq=False)
class Intake:
    """Makes requests of prompts for a `live` fleet.  KV events `remember` which tokens each block's name stands for."""

    live: Live
    served: ServedModel
    author: Author
    lengths: AnswerLengths
    remember: Remember | None = None
    _numbers: "itertools.count[int]" = field(factory=itertools.count, init=False)

    def prepare(self, asked: CompletionFields | ChatFields, prompt: ApiPrompt, most: int | None, adapter: str,
                headers: Mapping[str, str], prompts: int = 1) -> Prepared:
        """The request for *prompt*, one of so many *prompts*, and at most *most* tokens; raises ApiError if it cannot
        be served."""
        request = self._request(asked, prompt, adapter, headers)
        tokens = len(prompt.ids)
        if prompt.images and (with_images := self.live.cluster.prepare):
            tokens = with_images(request).prompt
        prompt.check(tokens, self.served.max_model_len)
        room = self.served.max_model_len - tokens
        room = room if most is None else min(room, most)
        check_sampling(asked, room, self.served.vocabulary)
        check_logprobs(asked, self.served.max_logprobs, self.served.vocabulary)
        answers = self._answers(asked, room, prompts)
        return Prepared(self._with_output(request, asked, prompt, answers, room), tokens, answers)

    def _request(self, asked: CompletionFields | ChatFields, prompt: ApiPrompt, adapter: str,
                 headers: Mapping[str, str]) -> Request:
        """The request without its output; `Live.submit` sets its number and arrival."""
        return Request(
            id=0, arrival=0.0, prompt=max(len(prompt.ids), 1), output=1, chunk_tokens=CHUNK, images=prompt.images,
            priority=_whole(headers.get(_PRIORITY), asked.priority), adapter=adapter,
            session=asked.session_id or headers.get(_SESSION, ""), tenant=headers.get(_TENANT) or asked.user or "",
            prompt_logprobs=_prompt_logprobs(asked), ignore_eos=asked.ignore_eos)

    def _answers(self, asked: GenerateFields, most: int, prompts: int) -> list[MadeUpAnswer]:
        """An answer for each sequence, of *most* tokens if it may not end by itself."""
        number, space = next(self._numbers), isinstance(asked, CompletionFields)
        exact = asked.ignore_eos or asked.use_beam_search or asked.min_tokens >= most
        lengths = [most if exact else max(min(self.lengths.draw(), most), asked.min_tokens, 1)
                   for _ in range(asked.sequences)]
        if (tokens := prompts * sum(lengths)) > _MAX_ANSWER_TOKENS:
            raise ApiError(f"The {prompts * len(lengths):,} sequences of this request would have {tokens:,} tokens, and"
                           f" this server answers with at most {_MAX_ANSWER_TOKENS:,}; ask for fewer, by n or"
                           f" max_tokens", 400, "BadRequestError")
        return [self.author.answer(asked, (number, sequence), length, most, space)
                for sequence, length in enumerate(lengths)]

    def _with_output(self, request: Request, asked: GenerateFields, prompt: ApiPrompt, answers: Sequence[MadeUpAnswer],
                     most: int) -> Request:
        """*request* with the lengths of its outputs, and names for all of its blocks."""
        outputs, beams = [len(answer.ids) for answer in answers], asked.sequences if asked.use_beam_search else 0
        chunks = block_names(prompt.ids, answers[0].ids, asked.cache_salt, self.remember)
        many: dict[str, Any] = {} if beams or len(outputs) == 1 else {"n": len(outputs), "outputs": tuple(outputs)}
        return evolve(request, output=max(outputs), chunks=chunks, max_tokens=most, beam_width=beams, **many)


def _prompt_logprobs(asked: CompletionFields | ChatFields) -> int | None:
    """How many log-probabilities of the prompt are computed: those asked for, or those of its echo."""
    if asked.prompt_logprobs is None and asked.echo and asked.logprobs is not None:
        return int(asked.logprobs)
    return asked.prompt_logprobs


def _whole(text: str | None, default: int) -> int:
    """*text* as a number, or *default* if it is none."""
    try:
        return int(text or default)
    except ValueError:
        return default


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
    served: ServedModel
    tokenizer: Tokenizer
    seed: int = 0
    remember: Remember | None = None
    on_abort: Callable[[int], object] = lambda request: None
    tells_cached: bool = False
    clock: Callable[[], float] = time
    intake: Intake = field(init=False)
    _numbers: "itertools.count[int]" = field(factory=itertools.count, init=False)
    _refusal_statuses: dict[int, int] = field(factory=dict, init=False)  # of HTTP, by request
    _replies: dict[int, Reply] = field(factory=dict, init=False)  # to requests that have not begun

    def __attrs_post_init__(self) -> None:
        lengths = AnswerLengths(self.live.fleet.scenario.workload, self.seed)
        self.intake = Intake(self.live, self.served, Author(self.tokenizer, self.seed), lengths, self.remember)
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
        prepared = [self.intake.prepare(asked, prompt, most, adapter, headers, len(prompts)) for prompt in prompts]
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
        prepared = self.intake.prepare(asked, prompt, most, adapter, headers)
        head = self._head("chatcmpl", model, asked, headers)
        made = ChatFormat(asked, head, self.tokenizer, prepared.answers, chat, prompt, prepared.tokens)
        return Generation(made.reply, [prepared.request])

    def _model(self, asked: GenerateFields) -> tuple[str, str]:
        if asked.stream and asked.use_beam_search:
            raise ApiError("Streaming is not currently supported with beam search", 400, "BadRequestError")
        return self.served.model(asked.model)

    def _prompt(self, chat: Chat) -> ApiPrompt:
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
        reply.begun(handles)
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

    def _head(self, kind: str, model: str, asked: GenerateFields, headers: Mapping[str, str]) -> ReplyHead:
        own = blake2b(f"{self.seed} {next(self._numbers)}".encode(), digest_size=8).hexdigest()
        name = headers.get("x-request-id") or asked.request_id or own
        return ReplyHead(f"{kind}-{name}", int(self.clock()), model, self.served.fingerprint)

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
