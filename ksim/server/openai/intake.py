"""From a prompt to the request that an engine gets, and the answers that it will give."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, evolve, field, frozen

from ksim.flow.request import Request
from ksim.server.errors import ApiError
from ksim.server.live.live import Live
from ksim.server.openai.replies.answer import Answer
from ksim.server.openai.replies.author import Author
from ksim.server.openai.replies.lengths import Lengths
from ksim.server.openai.requests.checks import check_logprobs, check_sampling
from ksim.server.openai.requests.fields import ChatFields, CompletionFields, GenerateFields
from ksim.server.openai.requests.prompts import CHUNK, Prompt, Remember, block_names
from ksim.server.openai.served_model import Served

__all__ = ["Intake", "Prepared"]

#: Headers with the tenant of a request (llm-d's), its priority, and its session (vLLM's).
_TENANT, _PRIORITY, _SESSION = "x-gateway-inference-fairness-id", "x-vllm-priority", "x-session-id"

#: Most tokens of all answers to a request: making up more would delay the tokens of others.
_MAX_ANSWER_TOKENS = 2**21


@frozen
class Prepared:
    """A request, how many `tokens` its prompt has with its images, and the answers that were made up for it."""

    request: Request
    tokens: int
    answers: Sequence[Answer]


@define(eq=False)
class Intake:
    """Makes requests of prompts for a `live` fleet.  KV events `remember` which tokens each block's name stands for."""

    live: Live
    served: Served
    author: Author
    lengths: Lengths
    remember: Remember | None = None
    _numbers: "itertools.count[int]" = field(factory=itertools.count, init=False)

    def prepare(self, asked: CompletionFields | ChatFields, prompt: Prompt, most: int | None, adapter: str,
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

    def _request(self, asked: CompletionFields | ChatFields, prompt: Prompt, adapter: str,
                 headers: Mapping[str, str]) -> Request:
        """The request without its output; `Live.submit` sets its number and arrival."""
        return Request(
            id=0, arrival=0.0, prompt=max(len(prompt.ids), 1), output=1, chunk_tokens=CHUNK, images=prompt.images,
            priority=_whole(headers.get(_PRIORITY), asked.priority), adapter=adapter,
            session=asked.session_id or headers.get(_SESSION, ""), tenant=headers.get(_TENANT) or asked.user or "",
            prompt_logprobs=_prompt_logprobs(asked))

    def _answers(self, asked: GenerateFields, most: int, prompts: int) -> list[Answer]:
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

    def _with_output(self, request: Request, asked: GenerateFields, prompt: Prompt, answers: Sequence[Answer],
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
