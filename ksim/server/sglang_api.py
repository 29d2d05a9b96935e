"""What servers of SGLang 0.5.23 answer beside OpenAI's API: `/generate`, facts about themselves, and their errors."""

import asyncio
import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from math import isfinite
from typing import Any
from weakref import WeakValueDictionary

from attrs import define, field
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ksim.engine.event_engine import EventEngine
from ksim.flow.events import Admitted, Preempted
from ksim.flow.request import Request
from ksim.scheduling.sglang.scheduler import SglangScheduler
from ksim.server.errors import ApiError
from ksim.server.http.application import Prepare, json_response
from ksim.server.http.streams import ResponseSink
from ksim.server.live import Live
from ksim.server.openai.api import Api, Generation
from ksim.server.openai.fields import read
from ksim.server.openai.prompts import ApiPrompt, check_ids
from ksim.server.openai.reply import ReplyHead, to_json
from ksim.server.sglang_fields import (
    ContractError,
    GenerateBody,
    GenerateError,
    GeneratePrompt,
    check_types,
    prompts_of,
)
from ksim.server.sglang_metrics import SglangMeter
from ksim.server.sglang_reply import DONE, GenerateReply, StreamedGeneration, WholeGeneration

__all__ = ["SglangApi", "flush"]

#: Tokens that the longest prompt is shorter than the context, and the longest answer to it.
_LESS_PROMPT, _LESS_ANSWER = 7, 2
#: Paths that need no key begin so.
_OPEN = ("/health", "/ready", "/metrics")
#: Seconds of the wall clock between looks at whether the engines are idle, and the longest wait for it.
_LOOK, _LONGEST_WAIT = 0.02, 3600.0


class _StreamError(GenerateError):
    """The same for a request whose answer is to be streamed: the stream says it."""


@define(eq=False)
class SglangApi:
    """SGLang's own API of the fleet behind `api`, with the throughputs that `meter` counts."""

    api: Api
    meter: SglangMeter
    tokenizer_path: str = ""
    _numbers: "itertools.count[int]" = field(factory=itertools.count, init=False)
    _replies: "WeakValueDictionary[int, GenerateReply]" = field(factory=WeakValueDictionary, init=False)  # by request
    _by_rid: "WeakValueDictionary[str, GenerateReply]" = field(factory=WeakValueDictionary, init=False)

    #: Paths of vLLM that SGLang does not have.
    absent: Collection[str] = field(default=("/version", "/load"), init=False)

    def __attrs_post_init__(self) -> None:
        self.api.live.log.subscribe(Admitted, self._admitted)
        self.api.live.log.subscribe(Preempted, self._preempted)

    @property
    def generators(self) -> Mapping[tuple[str, str], Prepare]:
        return {(method, "/generate"): self.generate for method in ("POST", "PUT")}

    def routes(self) -> Sequence[Route]:
        pages = {"/": "SGLang is running", **dict.fromkeys(("/model_info", "/get_model_info"), self.model_info),
                 **dict.fromkeys(("/server_info", "/get_server_info"), self.server_info)}
        return [*(Route(path, partial(_page, page), methods=["GET"]) for path, page in pages.items()),
                *(Route(path, self._healthy, methods=["GET"]) for path in ("/health_generate", "/ready")),
                Route("/flush_cache", self._flush, methods=["GET", "POST"])]

    def guards(self, path: str) -> bool:
        return not path.startswith(_OPEN)

    # Errors.

    def refuse(self, sink: ResponseSink, error: ApiError) -> None:
        if isinstance(error, _StreamError):
            sink.start(200, "text/event-stream; charset=utf-8")
            sink.write(error.event + DONE, True)
        else:
            sink.whole(error.status, to_json(self.told(error)))

    def told(self, error: ApiError) -> dict[str, Any]:
        if isinstance(error, GenerateError | ContractError):
            return error.body
        return {"object": "error", "message": error.message, "type": error.kind, "param": error.param,
                "code": error.status}

    # Generation.

    def generate(self, api: Api, body: Any, headers: Mapping[str, str]) -> Generation:
        """Read the body of `/generate`; raises ApiError if it cannot be answered."""
        asked = read(GenerateBody, body)
        check_types(asked.sampling_params)
        try:
            return self._generation(asked, headers)
        except ApiError as error:
            raise (_StreamError if asked.stream else GenerateError)(error.message, error.status) from None

    def _generation(self, asked: GenerateBody, headers: Mapping[str, str]) -> Generation:
        api, vocabulary = self.api, self.api.served.vocabulary
        asked_for = prompts_of(asked, self._new_rid, vocabulary)
        for rid in [rid for prompt in asked_for for rid in prompt.rids]:
            if (other := self._by_rid.get(rid)) is not None and not other.over:
                raise GenerateError(f"Duplicate request ID detected: {rid}")
        prompts = [self._prompt(prompt) for prompt in asked_for]
        prepared = [api.intake.prepare(
            one.fields(asked, vocabulary, api.served.max_logprobs), prompt, self._most(one, len(prompt.ids)),
            self._adapter(one.adapter), headers, len(prompts)) for one, prompt in zip(asked_for, prompts, strict=True)]
        kind = StreamedGeneration if asked.stream else WholeGeneration
        reply = kind(ReplyHead("", int(api.clock()), api.served.names[0], api.served.fingerprint), prompts,
                     [one.tokens for one in prepared], [answer for one in prepared for answer in one.answers],
                     asked=asked, asked_for=asked_for, tokenizer=api.tokenizer, track=self._track)
        self._by_rid.update(dict.fromkeys(reply.rids, reply))
        return Generation(reply, [one.request for one in prepared])

    def _new_rid(self) -> str:
        return blake2b(f"{self.api.seed} generate {next(self._numbers)}".encode(), digest_size=16).hexdigest()

    def _prompt(self, asked: GeneratePrompt) -> ApiPrompt:
        """The prompt, if it is not too long."""
        tokenizer, longest = self.api.tokenizer, self.api.served.max_model_len
        if asked.ids is None:
            said = asked.text or ""
            if len(said) > longest * tokenizer.longest_token:
                raise _too_long(len(said) // tokenizer.longest_token, longest)
            prompt = ApiPrompt(tokenizer.encode(said), said)
        else:
            if min(asked.ids) < 0:
                raise GenerateError(f"Token id {min(asked.ids)} is out of vocabulary")
            check_ids(asked.ids, max(self.api.served.vocabulary, tokenizer.vocabulary))
            prompt = ApiPrompt(asked.ids)
        if len(prompt.ids) >= longest:
            raise _too_long(len(prompt.ids), longest)
        return prompt

    def _most(self, asked: GeneratePrompt, tokens: int) -> int:
        """How many tokens may follow a prompt of so many *tokens*."""
        longest, most = self.api.served.max_model_len, asked.most
        if most is not None and most + tokens > longest:
            raise GenerateError(
                f"Requested token count exceeds the model's maximum context length of {longest} tokens. You requested a"
                f" total of {most + tokens} tokens: {tokens} tokens from the input messages and {most} tokens for the"
                f" completion. Please reduce the number of tokens in the input messages or the completion to fit within"
                f" the limit.")
        if tokens > (limit := longest - _LESS_PROMPT):
            raise GenerateError(f"Input length ({tokens} tokens) exceeds the maximum allowed length ({limit + 1}"
                                f" tokens). Use a shorter input or enable --allow-auto-truncate.")
        room = longest - _LESS_ANSWER - tokens
        return room if most is None else max(min(most, room), 1)

    def _adapter(self, name: str) -> str:
        """The adapter *name*, which is served."""
        served = self.api.served
        if name and not served.adapters:
            raise GenerateError(f"LoRA adapter '{name}' was requested, but LoRA is not enabled.")
        if name and name not in served.adapters:
            raise GenerateError(f"Got LoRA adapter that has never been loaded: {name}\nAll loaded adapters:"
                                f" {[*served.adapters]}.")
        return name

    # What engines do with requests.

    def _track(self, request: int, reply: GenerateReply) -> None:
        """Tell *reply* what happens to its *request*."""
        self._replies[request] = reply

    def _admitted(self, event: Admitted) -> None:
        reply = self._replies.get(event.request_id)
        if reply is not None:
            reply.heard_admission(event)

    def _preempted(self, event: Preempted) -> None:
        reply = self._replies.get(event.request_id)
        if reply is not None:
            reply.retractions[reply.numbers[event.request_id]] += 1

    # What it tells of itself.

    def model_info(self) -> dict[str, Any]:
        """What `/model_info` answers."""
        served = self.api.served
        return {"model_path": served.root, "served_model_name": served.names[0], "tokenizer_path": self.tokenizer_path,
                "is_generation": True, "preferred_sampling_params": None, "weight_version": "default",
                "load_format": "auto", "reasoning_parser": None, "tool_call_parser": None,
                "disaggregation_mode": "null", "has_image_understanding": served.takes_images,
                "has_audio_understanding": False}

    def server_info(self) -> dict[str, Any]:
        """What `/server_info` answers: settings of the first pool, and the state of each engine."""
        live, served = self.api.live, self.api.served
        pool = live.fleet.pools[0]
        serve, tokens = pool.deployment.serve, pool.deployment.kv_blocks * pool.deployment.block_tokens
        draft = serve.speculative_config
        settings = {
            "model_path": served.root, "served_model_name": served.names[0], "tokenizer_path": self.tokenizer_path,
            "tp_size": serve.tensor_parallel_size, "pp_size": serve.pipeline_parallel_size,
            "dp_size": len(live.engines), "context_length": serve.max_model_len,
            "max_running_requests": serve.max_num_seqs,
            "chunked_prefill_size": serve.max_num_batched_tokens, "page_size": pool.deployment.block_tokens,
            "kv_cache_dtype": serve.kv_cache_dtype, "quantization": serve.quantization,
            "disable_radix_cache": not serve.enable_prefix_caching, "schedule_policy": serve.scheduling_policy.name,
            "disable_cuda_graph": serve.enforce_eager, "enable_lora": serve.enable_lora,
            "enable_eplb": serve.enable_eplb, "disaggregation_mode": "null",
            "speculative_algorithm": draft.method.upper() if draft and draft.method else None,
            "enable_metrics": True, "max_total_num_tokens": tokens,
            "max_req_input_len": (serve.max_model_len or 0) - _LESS_PROMPT + 1}
        return settings | {"internal_states": self._states(), "version": served.version}

    def _states(self) -> list[dict[str, Any]]:
        """The state of each engine."""
        live, states = self.api.live, list[dict[str, Any]]()
        built = {engine.engine: engine for engine in live.log.engines}
        for number, throughput in enumerate(self.meter.throughputs()):
            one = built[number]
            pool = next(pool for pool in live.fleet.pools if number in pool.numbers)
            length = self.meter.accepted_length(number)
            states.append({
                "dp_size": len(live.engines), "last_gen_throughput": throughput,
                "effective_max_running_requests_per_dp": pool.deployment.serve.max_num_seqs,
                "memory_usage": {"weight": round(one.weights / 2**30, 3),
                                 "token_capacity": one.kv_blocks * one.block_tokens},
                **({"avg_spec_accept_length": length} if length else {})})
        return states

    async def _healthy(self, request: HttpRequest) -> Response:
        return Response(status_code=503 if self.api.live.draining else 200)

    async def _flush(self, request: HttpRequest) -> Response:
        """Empty the prefix caches, if engines are idle within `timeout` seconds."""
        wait, live = _seconds(request.query_params.get("timeout", "0")), self.api.live
        end = live.wall() + wait
        while not (flushed := flush(live)) and live.wall() < end:
            await asyncio.sleep(_LOOK)
        if flushed:
            return PlainTextResponse("Cache flushed.\n")
        return PlainTextResponse("Timed out waiting for idle state." if wait else "Flush cache failed.\n", 400)


async def _page(page: Any, request: HttpRequest) -> Response:
    return json_response(page() if callable(page) else page)


def _seconds(text: str) -> float:
    """A time to wait; raises ApiError for none."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (isfinite(seconds) and seconds >= 0):
        raise ApiError(f"timeout must be a number of seconds, not {text[:50]!r}", param="timeout")
    return min(seconds, _LONGEST_WAIT)


def _too_long(tokens: int, longest: int) -> GenerateError:
    return GenerateError(f"The input ({tokens} tokens) is longer than the model's context length ({longest} tokens).")


def flush(live: Live) -> bool:
    """Empty the prefix caches of all engines, if none has anything to do; return whether they were emptied."""
    live.advance()
    if live.handles or any(engine.scheduler.cache.pool.used for engine in live.engines):
        return False
    for engine in live.engines:
        _empty(engine)
    return True


def _empty(engine: EventEngine) -> None:
    """Have the cache of *engine* forget what no request uses: SGLang's tree makes room; else requests take all."""
    scheduler, tables = engine.scheduler, []
    cache = scheduler.cache
    tokens = cache.pool.free * cache.block_tokens
    if isinstance(scheduler, SglangScheduler):
        scheduler.cache.make_room(tokens)
        return
    while tokens >= cache.block_tokens:
        table = cache.block_table(Request(0, 0.0, 1, 1))
        cache.attach_prefix(table, cache.find_prefix(table, 1))
        tables.append(table)
        if not cache.allocate(table, tokens):  # layers of several kinds need more
            tokens //= 2
    for table in tables:
        cache.free(table)
