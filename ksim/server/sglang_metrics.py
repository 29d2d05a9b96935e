"""The metrics of SGLang 0.5.23 that can be simulated; ksim/data/metrics/sglang.toml has their names."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar

from attrs import define, field

from ksim.engine.event_engine import EventEngine, Sampled
from ksim.flow.events import EngineBuilt, Finished, Stepped, Transferred
from ksim.scheduling.job import Job, State
from ksim.server.exposition import MetricFamily
from ksim.server.http.streams import App, Message, Receive, Send
from ksim.server.metrics import EngineMeter, Meter, OpenRequest
from ksim.server.openai.reply import PromptListener
from ksim.server.vllm_metrics import EngineMetrics
from ksim.simulation.pool import EnginePool

__all__ = ["SglangHttpMetrics", "SglangMeter"]

#: SGLang's default of --decode-log-interval, in decode steps, and the seconds after which it forgets a throughput.
_INTERVAL, _FRESH = 40, 30.0
#: Its names for the tiers that have KV.
_TIERS = {"device": "device", "host": "host", "disk": "storage", "external_unspecified": "storage"}
#: Its names for what a pool of engines does.
_TYPES = {"prefill": "prefill", "decode": "decode"}


@define(eq=False)
class DecodeWindow:
    """The latest decode steps: `throughput` is that of the last whole interval, which ended at `since`."""

    since: float = field(default=0.0, init=False)
    throughput: float = field(default=0.0, init=False)
    _steps: int = field(default=0, init=False)
    _tokens: int = field(default=0, init=False)

    def add(self, tokens: int, now: float) -> bool:
        """Count a decode step; return whether an interval is full, which it is after every 40."""
        self._steps, self._tokens = self._steps + 1, self._tokens + tokens
        if self._steps < _INTERVAL:
            return False
        self.throughput = self._tokens / (now - self.since) if now > self.since else 0.0
        self.since, self._steps, self._tokens = now, 0, 0
        return True

    def recent(self, now: float) -> float:
        """The throughput, or 0 if it is old."""
        return self.throughput if now - self.since <= _FRESH else 0.0


@define(eq=False)
class SglangEngineMeter(EngineMeter):
    """Counts what `engine` does in `metrics` of its scheduler, and in those of its server's `requests`.

    Those in `streams` are apart for answers that are streamed and others, which `streamed` tells by the request.
    """

    requests: EngineMetrics = field(kw_only=True)
    streams: Mapping[bool, EngineMetrics] = field(kw_only=True)
    streamed: Callable[[int], bool] = field(kw_only=True)
    built: EngineBuilt = field(kw_only=True)
    window: DecodeWindow = field(factory=DecodeWindow, init=False)
    verified: tuple[int, int] = field(default=(0, 0), init=False)  # all drafts, and accepted tokens of them
    _streaming: set[int] = field(factory=set, init=False)
    _admission: tuple[float, int, int] = field(default=(-1.0, 0, 0), init=False)  # the latest: when, hits, tokens
    _verified: tuple[int, int, int] = field(default=(0, 0, 0), init=False)  # drafts, their tokens, accepted ones

    @property
    def prefills(self) -> bool:
        """Whether another engine decodes what it prefills."""
        return self.built.role == "prefill"

    def received(self, request: int, time: float) -> None:
        super().received(request, time)
        if self.streamed(request):
            self._streaming.add(request)

    def count_admission(self, request: OpenRequest, known: int) -> None:
        found, add = _found(request), self.metrics.add
        hits = sum(found.values())
        for tier, tokens in found.items():
            add("prefill_effective_tokens", tokens, f"{tier}_hit")
        add("prefill_effective_tokens", max(known - hits - request.loaded["p2p"], 0), "input")
        add("realtime_tokens", hits, "prefill_cache")
        self.metrics.observe("queue_time_seconds", request.admitted - request.received)
        when, before, tokens = self._admission
        self._admission = (request.admitted, before + hits, tokens + known) if when == request.admitted else (
            request.admitted, hits, known)

    def count_preemption(self, request: OpenRequest | None) -> None:
        add = self.metrics.add
        add("num_retracted_requests")
        for job in request.jobs[:1] if request else ():
            add("num_retracted_input_tokens", job.request.prompt)
            add("num_retracted_output_tokens", job.sampled)

    def count_transfer(self, event: Transferred) -> None:
        """Count nothing: the prefill engine does (`sent`)."""

    def sent(self, event: Transferred) -> None:
        """The KV of a request has gone to another engine."""
        seconds, size, observe = event.time - event.began, event.bytes / 2**20, self.metrics.observe
        observe("kv_transfer_latency_ms", 1e3 * seconds)
        observe("kv_transfer_total_mb", size)
        if seconds > 0:
            observe("kv_transfer_speed_gb_s", size / 1024 / seconds)

    # Steps.

    def stepped(self, step: Stepped) -> None:
        batch, (drafts, tokens, accepted) = step.batch, self._verified
        self.metrics.add("realtime_tokens", sum(new for _, new, _ in batch.prompts), "prefill_compute")
        if self.drafted:
            count, good = len(batch.accepted), sum(batch.accepted)
            self._verified = (drafts + count, tokens + batch.drafts, accepted + good)
            self.verified = (self.verified[0] + count, self.verified[1] + good)

    def sampled(self, tokens: Sequence[Sampled], now: float) -> None:
        begun = [(self._last[job], job, count) for job, count in tokens if job in self._last]
        gaps = Counter((moment, count) for moment, _, count in begun)
        for (moment, count), times in gaps.items():
            if not self.prefills:
                self.requests.observe("inter_token_latency_seconds", (now - moment) / count, count * times)
        if decoded := sum(count for _, _, count in begun):
            self.metrics.add("realtime_tokens", decoded, "decode")
            if self.window.add(decoded, now):
                self._report_drafts()
        first = self._count_first_tokens([job for job, _ in tokens if job not in self._last], now)
        self._last.update(dict.fromkeys((*(job for _, job, _ in begun), *first), now))

    def _report_drafts(self) -> None:
        """Set the gauges of speculation."""
        (drafts, tokens, accepted), self._verified = self._verified, (0, 0, 0)
        if self.drafted:
            self.metrics.set("spec_accept_length", 1 + accepted / drafts if drafts else 0.0)
            self.metrics.set("spec_accept_rate", accepted / tokens if tokens else 0.0)

    def count_first_token(self, job: Job, request: OpenRequest, now: float) -> None:
        if not self.prefills:
            self._stream(job).observe("time_to_first_token_seconds", now - job.request.arrival)

    def _stream(self, job: Job) -> EngineMetrics:
        return self.streams[job.request.id in self._streaming]

    # Ends.

    def ended(self, request: int, end: Finished | None = None) -> None:
        if end is None and request in self._open:
            self.requests.add("num_aborted_requests")
        super().ended(request, end)
        self._streaming.discard(request)

    def count_request(self, request: OpenRequest, end: Finished) -> None:
        self.metrics.add("num_retracted_requests", end.preemptions)
        if self.drafted:
            self.requests.add("spec_verify_calls", end.verified)

    def count_sequence(self, job: Job, request: OpenRequest) -> None:
        prompt, tokens, first, last = job.request.prompt, job.sampled, self._first[job], self._last[job]
        found = self._found(job, request)
        for tier, count in found.items():
            self.requests.add("cached_tokens", count, tier)
        for name, size in (("prompt_tokens", prompt), ("generation_tokens", tokens),
                           ("uncached_prompt_tokens", prompt - sum(found.values()))):
            self.requests.observe(f"{name}_histogram", size)
        stream = self._stream(job)
        for name, value in (("prompt_tokens", prompt), ("generation_tokens", tokens), ("num_requests", 1)):
            stream.add(name, value)
        stream.observe("e2e_request_latency_seconds", last - job.request.arrival)
        if tokens > 1 and not self.prefills:
            stream.observe("request_time_per_output_token_seconds", (last - first) / (tokens - 1))

    def _found(self, job: Job, request: OpenRequest) -> Mapping[str, int]:
        """How many tokens of the prompt of *job* each tier had."""
        if job is not request.jobs[0]:
            return {"device": min(job.cached, job.request.prompt)}
        left, found = job.request.prompt, dict[str, int]()
        for tier, tokens in _found(request).items():
            found[tier] = min(tokens, left)
            left -= found[tier]
        return found

    # Gauges.

    def set_gauges(self) -> None:
        scheduler, now = self.engine.scheduler, self.engine.env.now
        loading = sum(job.state is State.LOADING for job in scheduler.waiting) if self.built.role == "decode" else 0
        _, hits, known = self._admission
        values: dict[str, float] = {
            "num_running_reqs": len(scheduler.running), "num_queue_reqs": len(scheduler.waiting) - loading,
            "gen_throughput": self.window.recent(now), "cache_hit_rate": hits / known if known else 0.0,
            "decode_sum_seq_lens": sum(job.request.prompt + job.sampled for job in self._last)} | self._pool()
        if self.built.role == "decode":
            values["num_decode_transfer_queue_reqs"] = loading
        if slots := self.built.max_loras:
            used = min(len(self.adapters()[1]), slots)
            values |= {"lora_pool_slots_used": used, "lora_pool_utilization": used / slots}
        for name, value in values.items():
            self.metrics.set(name, value)

    def _pool(self) -> dict[str, float]:
        """Gauges of the KV pool."""
        cache, pool = self.engine.scheduler.cache, self.engine.scheduler.cache.pool
        page, evictable = cache.block_tokens, int(getattr(pool, "evictable", 0))
        used, usage = pool.used * page, pool.used / cache.capacity
        return {"token_usage": round(usage, 2), "full_token_usage": usage, "num_used_tokens": used,
                "kv_used_tokens": used, "kv_available_tokens": pool.free * page - evictable,
                "kv_evictable_tokens": evictable}

    @property
    def kept(self) -> int:
        return super().kept + len(self._streaming)


def _found(request: OpenRequest) -> dict[str, int]:
    """How many tokens of a request each tier had, by SGLang's names."""
    found = {"device": request.hit, "host": 0, "storage": 0}
    for tier, tokens in request.loaded.items():
        if tier in _TIERS:
            found[_TIERS[tier]] += tokens
    return found


@define(eq=False)
class SglangMeter(Meter):
    """Counts what happens in `live` in SGLang's metrics.

    Engines of a fleet are told apart by `dp_rank`, as those of SGLang's --dp-size are, and by `engine_type`.
    """

    PREFIX: ClassVar[str] = "sglang"

    def meter(self, engine: EventEngine, built: EngineBuilt) -> EngineMeter:
        server = {"model_name": self.model_name, "engine_type": _TYPES.get(built.role, "unified")}
        ranks = {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
        many = {"dp_rank": str(engine.number)} if len(self.live.engines) > 1 else {}
        streams = {kind: EngineMetrics(self.families, server | {"is_streaming": str(kind).lower()})
                   for kind in (True, False)}
        made = SglangEngineMeter(
            engine, EngineMetrics(self.families, server | ranks | many), built.drafted, built=built, streams=streams,
            requests=EngineMetrics(self.families, server), streamed=self._streamed)
        _add_samples(made)
        _set_constants(made)
        return made

    def publish_settings(self, pool: EnginePool) -> None:
        for number in pool.numbers:
            self.engines[number].metrics.set("context_len", pool.deployment.serve.max_model_len or 0)

    def transferred(self, event: Transferred) -> None:
        super().transferred(event)
        source = self.engines[event.source]
        if isinstance(source, SglangEngineMeter) and source.prefills:
            source.sent(event)

    def further_families(self) -> Sequence[MetricFamily]:
        """Nothing."""
        return ()

    def throughputs(self) -> list[float]:
        """The tokens per second that each engine has generated lately."""
        return [engine.window.throughput for engine in self.engines if isinstance(engine, SglangEngineMeter)]

    def accepted_length(self, number: int) -> float:
        """How many tokens a sequence of an engine got from a verification, on average; 0 without any."""
        engine = self.engines[number]
        assert isinstance(engine, SglangEngineMeter), "all engines have SGLang's metrics"
        drafts, accepted = engine.verified
        return 1 + accepted / drafts if drafts else 0.0

    def _streamed(self, request: int) -> bool:
        """Whether the answer to a request is streamed."""
        handle = self.live.handles.get(request)
        return handle is not None and isinstance(handle.listener, PromptListener) and handle.listener.streams


def _add_samples(meter: SglangEngineMeter) -> None:
    """Make the samples of an engine, and those of its server."""
    meter.metrics.add_samples()
    for wanted, table in ((meter.drafted, "drafts"), (meter.built.max_loras, "adapters"),
                          (meter.built.role == "decode", "decode")):
        if wanted:
            meter.metrics.add_all(table, "gauge")
    if meter.prefills:
        meter.metrics.add_histograms("prefill")
    if meter.drafted:
        meter.requests.add_all("request_drafts", "counter")
    for metrics, name in ((meter.requests, "request"), *((stream, "stream") for stream in meter.streams.values())):
        metrics.add_all(f"{name}_counters", "counter")
        metrics.add_histograms(f"{name}_histograms")


def _set_constants(meter: SglangEngineMeter) -> None:
    """Set the gauges that never change."""
    built, set_ = meter.built, meter.metrics.set
    set_("max_total_num_tokens", built.kv_blocks * built.block_tokens)
    set_("page_size", built.block_tokens)
    set_("num_pages", built.kv_blocks)
    set_("weight_memory_usage_gb", built.weights / 2**30)
    if built.max_loras:
        set_("lora_pool_slots_total", built.max_loras)
    if meter.drafted:
        set_("spec_num_steps", meter.drafted)
        set_("spec_num_draft_tokens", meter.drafted + 1)


@define(eq=False)
class SglangHttpMetrics:
    """SGLang's HTTP metrics, as ASGI middleware: they count the requests of `app` by paths; those that are none of
    `endpoints` count together as "none"."""

    app: App
    endpoints: Sequence[str]
    families: Sequence[MetricFamily] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.families = (MetricFamily("sglang:http_requests", "counter", "Requests by endpoint and method."),
                         MetricFamily("sglang:http_responses", "counter", "Their answers, by status, too."),
                         MetricFamily("sglang:http_requests_active", "gauge", "Requests that wait for their answer."))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, (requests, responses, active) = scope["path"], self.families
        labels = {"endpoint": path if path in self.endpoints else "none", "method": scope["method"]}

        def noted(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                responses.count({"endpoint": labels["endpoint"], "status_code": str(message["status"]),
                                 "method": labels["method"]}).value += 1
            return send(message)

        requests.count(labels).value += 1
        active.count(labels).value += 1
        try:
            await self.app(scope, receive, noted)
        finally:
            active.count(labels).value -= 1
