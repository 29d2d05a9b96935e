"""What GET /metrics answers: a meter listens to a live fleet, and counts what each engine does in vLLM's metrics.

`count_...` put what has happened into metrics; a meter of another engine has its own.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from time import time
from typing import ClassVar

from attrs import define, field

from ksim.engine.event_engine import EventEngine, Sampled
from ksim.flow.batch import Batch
from ksim.flow.events import (
    Admitted,
    Copied,
    EngineBuilt,
    Failed,
    Finished,
    Preempted,
    Prefilled,
    Received,
    Refused,
    Rejected,
    Stepped,
    Transferred,
)
from ksim.scheduling.job import Job, State
from ksim.server.exposition import MetricFamily, text
from ksim.server.live import Live
from ksim.server.vllm_metrics import EngineMetrics, Families
from ksim.simulation.pool import EnginePool

__all__ = ["EngineMeter", "Meter", "OpenRequest"]


_JOB, _COUNT = itemgetter(0), itemgetter(1)


@define(eq=False)
class OpenRequest:
    """A request in the engine: when it was `received` and first `admitted`, and its `jobs` that have tokens.

    `hit` tokens of its prompt were in the prefix cache; others were `loaded` from tiers or other engines.
    """

    received: float
    admitted: float = 0.0
    hit: int = 0
    loaded: Counter[str] = field(factory=Counter)  # by the tier that had them
    preemptions: int = 0
    jobs: list[Job] = field(factory=list)


@define(eq=False)
class EngineMeter:
    """Counts what `engine` does in its `metrics`.

    The tokens of a step are counted together.  Single requests cost time only when they arrive, are admitted, get their
    first tokens, and end.
    """

    engine: EventEngine
    metrics: EngineMetrics
    drafted: int = 0
    _open: dict[int, OpenRequest] = field(factory=dict, init=False)
    _first: dict[Job, float] = field(factory=dict, init=False)
    _last: dict[Job, float] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.engine.listener = self._after(self.engine.listener)

    def _after(self, other: Callable[[Sequence[Sampled]], object] | None) -> Callable[[Sequence[Sampled]], None]:
        """A listener that counts the tokens of a step after the *other* listener of the engine has got them."""
        def take_in(tokens: Sequence[Sampled]) -> None:
            if other is not None:
                other(tokens)
            self.sampled(tokens, self.engine.env.now)
        return take_in

    # Requests.

    def received(self, request: int, time: float) -> None:
        """A request has reached the engine."""
        self._open[request] = OpenRequest(time)

    def admitted(self, event: Admitted) -> None:
        """A request runs, perhaps again."""
        request = self._open.get(event.request_id)
        if event.again or request is None:
            return
        loaded = request.loaded
        loaded["p2p"] = min(loaded["p2p"], event.cached)  # all but a token that is computed again
        request.admitted, request.hit = event.time, event.cached - loaded["p2p"]
        self.count_admission(request, event.known)

    def count_admission(self, request: OpenRequest, known: int) -> None:
        """Count what was found of the *known* tokens of a request."""
        loaded, add = request.loaded, self.metrics.add
        add("prefix_cache_queries", known)
        add("prefix_cache_hits", request.hit)
        add("prompt_tokens_cached_by_source", request.hit, "device")
        if self.engine.connector is not None:
            add("external_prefix_cache_queries", known - request.hit)
            add("external_prefix_cache_hits", loaded.total())
        for source, tokens in loaded.items():
            add("prompt_tokens_cached_by_source", tokens, source)

    def preempted(self, event: Preempted) -> None:
        """A request waits again."""
        request = self._open.get(event.request_id)
        if request is not None:
            request.preemptions += 1
        self.count_preemption(request)

    def count_preemption(self, request: OpenRequest | None) -> None:
        """Count a preemption, of a request that has not been aborted if there is one."""
        self.metrics.add("num_preemptions")

    def transferred(self, event: Transferred) -> None:
        """The KV of a request has arrived from another engine."""
        self._load(event.request_id, p2p=event.tokens)
        self.count_transfer(event)

    def count_transfer(self, event: Transferred) -> None:
        """Count a transfer."""
        self.metrics.observe("nixl_xfer_time_seconds", event.time - event.began)
        self.metrics.observe("nixl_bytes_transferred", event.bytes)

    def copied(self, event: Copied) -> None:
        """KV of a request has arrived from a tier below the GPU, or has gone there."""
        if event.target == "gpu":
            below = event.disk + event.storage
            self._load(event.request_id, host=event.tokens - below, disk=event.disk,
                       external_unspecified=event.storage)

    def _load(self, request: int, **tokens: int) -> None:
        if request in self._open:
            self._open[request].loaded.update(tokens)

    # Steps.

    def stepped(self, step: Stepped) -> None:
        """A step is over."""
        self.metrics.observe("iteration_tokens_total", step.batch.tokens)
        if self.drafted:
            self._count_drafts(step.batch)

    def sampled(self, tokens: Sequence[Sampled], now: float) -> None:
        """Clients get the *tokens* of a step."""
        if not tokens:
            return
        jobs = [*map(_JOB, tokens)]
        for moment, times in Counter(map(self._last.get, jobs)).items():
            if moment is None:
                jobs = self._count_first_tokens(jobs, now)
            else:
                self.metrics.observe("inter_token_latency_seconds", now - moment, times)
        self._last.update(dict.fromkeys(jobs, now))
        self.metrics.add("generation_tokens", sum(map(_COUNT, tokens)))

    def _count_first_tokens(self, jobs: Sequence[Job], now: float) -> list[Job]:
        """Count the first tokens of *jobs*; return the jobs whose requests have not been aborted."""
        for job in jobs:
            request = self._open.get(job.request.id)
            if job in self._last or request is None:
                continue
            self._first[job] = now
            request.jobs.append(job)
            self.count_first_token(job, request, now)
        return [job for job in jobs if job.request.id in self._open]

    def count_first_token(self, job: Job, request: OpenRequest, now: float) -> None:
        """Count the first token of *job*, and its prompt."""
        self.metrics.observe("time_to_first_token_seconds", now - self._arrival(job, request))
        self._count_prompt(job.request.prompt, *self._cached(job, request))

    def _count_prompt(self, prompt: int, hit: int, loaded: int) -> None:
        """Count a *prompt* of which *hit* tokens were in the prefix cache and others were *loaded*."""
        add = self.metrics.add
        add("prompt_tokens", prompt)
        add("prompt_tokens_cached", hit + loaded)
        add("prompt_tokens_by_source", prompt - hit - loaded, "local_compute")
        add("prompt_tokens_by_source", hit, "local_cache_hit")
        add("prompt_tokens_by_source", loaded, "external_kv_transfer")

    def _cached(self, job: Job, request: OpenRequest) -> tuple[int, int]:
        """How many tokens of the prompt of *job* were in the prefix cache, and how many were loaded.

        Events tell that of the first sequence of a request; others find the prompt that the first one has computed.
        """
        if len(request.jobs) > 1:
            return min(job.cached, job.request.prompt), 0
        hit = min(request.hit, job.request.prompt)
        return hit, min(request.loaded.total(), job.request.prompt - hit)

    def _arrival(self, job: Job, request: OpenRequest) -> float:
        """When the request of *job* arrived: at the fleet, or at a decode engine from the prefill engine."""
        return request.received if job.kv_transfer_params and job.kv_transfer_params.do_remote_prefill else (
            job.request.arrival)

    def _count_drafts(self, batch: Batch) -> None:
        """Count the drafted tokens of *batch*, and the accepted ones."""
        add, accepted = self.metrics.add, batch.accepted
        add("spec_decode_num_drafts", len(accepted))
        add("spec_decode_num_draft_tokens", batch.drafts)
        add("spec_decode_num_accepted_tokens", sum(accepted))
        for index in range(self.drafted):
            add("spec_decode_num_accepted_tokens_per_pos", sum(count > index for count in accepted), str(index))

    # Ends.

    def ended(self, request: int, end: Finished | None = None) -> None:
        """A request has ended; without an *end* it has failed or was aborted."""
        left = self._open.pop(request, None)
        if left is None:
            return
        if end is not None:
            self.count_request(left, end)
        for job in left.jobs:
            if end is not None:
                self.count_sequence(job, left)
            self._first.pop(job, None)
            self._last.pop(job, None)

    def count_request(self, request: OpenRequest, end: Finished) -> None:
        """Count a request that has ended."""
        self.metrics.add("num_preemptions", end.preemptions)  # those that were no events: of further sequences
        observe = self.metrics.observe
        if request.jobs:
            observe("request_params_n", request.jobs[0].request.n if len(request.jobs) == 1 else len(request.jobs))
            observe("request_max_num_generation_tokens", max(job.sampled for job in request.jobs))

    def count_sequence(self, job: Job, request: OpenRequest) -> None:
        """Count a sequence that has ended."""
        asked, tokens, observe = job.request, job.sampled, self.metrics.observe
        first, last = self._first[job], self._last[job]
        length = asked.max_tokens is None or tokens >= asked.max_tokens
        self.metrics.add("request_success", 1, "length" if length else "stop")
        for name, value in (
                ("e2e_request_latency", last - self._arrival(job, request)),
                ("request_queue_time", request.admitted - request.received),
                ("request_prefill_time", first - request.admitted), ("request_decode_time", last - first),
                ("request_inference_time", last - request.admitted),
                ("request_time_per_output_token", (last - first) / (tokens - 1) if tokens > 1 else 0.0)):
            observe(f"{name}_seconds", value)
        observe("request_num_preemptions", request.preemptions if len(request.jobs) == 1 else job.preemptions)
        observe("request_prefill_kv_computed_tokens", max(asked.prompt - sum(self._cached(job, request)), 0))
        observe("request_prompt_tokens", asked.prompt)
        observe("request_generation_tokens", tokens)
        observe("request_params_max_tokens", asked.output if asked.max_tokens is None else asked.max_tokens)

    # Gauges.

    def set_gauges(self) -> None:
        """Set the gauges to the present state of the scheduler and the cache."""
        scheduler, set_ = self.engine.scheduler, self.metrics.set
        waiting = len(scheduler.waiting)
        deferred = sum(job.state is State.LOADING for job in scheduler.waiting)
        set_("num_requests_running", len(scheduler.running))
        set_("num_requests_waiting", waiting)
        set_("num_requests_waiting_by_reason", waiting - deferred, "capacity")
        set_("num_requests_waiting_by_reason", deferred, "deferred")
        set_("kv_cache_usage_perc", scheduler.cache.pool.used / scheduler.cache.capacity)

    def adapters(self) -> tuple[Mapping[str, None], Mapping[str, None]]:
        """The LoRA adapters of the requests that wait, and of those that run."""
        scheduler = self.engine.scheduler
        waiting, running = (dict.fromkeys(job.request.adapter for job in jobs if job.request.adapter)
                            for jobs in (scheduler.waiting, scheduler.running))
        return waiting, running

    @property
    def kept(self) -> int:
        """How many requests and sequences are remembered: none, once all have ended."""
        return len(self._open) + len(self._first) + len(self._last)


@define(eq=False)
class Meter:
    """Counts what happens in `live`, which has not begun, in Prometheus metrics with the label `model_name`."""

    live: Live
    model_name: str
    families: Families = field(init=False)
    engines: Sequence[EngineMeter] = field(init=False)
    _refused: int = field(default=0, init=False)

    #: The file of the metrics in ksim/data/metrics.
    PREFIX: ClassVar[str] = "vllm"

    def __attrs_post_init__(self) -> None:
        live, fleet = self.live, self.live.fleet
        longest = max(pool.deployment.serve.max_model_len or 0 for pool in fleet.pools)
        self.families = Families(self.model_name, longest, self.PREFIX)
        built = {engine.engine: engine for engine in live.log.engines}
        self.engines = [self.meter(engine, built[engine.number]) for engine in live.engines]
        for pool in fleet.pools:
            self.publish_settings(pool)
        self._subscribe()

    def meter(self, engine: EventEngine, built: EngineBuilt) -> EngineMeter:
        """What counts what *engine* does, which was *built* so."""
        metrics = self.families.engine(engine.number, built.drafted, self.live.fleet.splits)
        return EngineMeter(engine, metrics, built.drafted)

    def publish_settings(self, pool: EnginePool) -> None:
        """Set vLLM's cache_config_info of the engines of *pool*."""
        serve, blocks = pool.deployment.serve, pool.deployment.kv_blocks
        for number in pool.numbers:
            self.families.info("cache_config_info", "Settings of the engine's KV cache.", {
                "block_size": str(serve.block_size), "cache_dtype": str(serve.kv_cache_dtype),
                "enable_prefix_caching": str(serve.enable_prefix_caching), "engine": str(number),
                "gpu_memory_utilization": str(serve.gpu_memory_utilization), "num_gpu_blocks": str(blocks)})

    def _subscribe(self) -> None:
        log, engines = self.live.log, self.engines
        log.subscribe(Received, lambda event: engines[event.engine].received(event.request_id, event.time))
        log.subscribe(Admitted, lambda event: engines[event.engine].admitted(event))
        log.subscribe(Preempted, lambda event: engines[event.engine].preempted(event))
        log.subscribe(Transferred, self.transferred)
        log.subscribe(Copied, lambda event: engines[event.engine].copied(event))
        log.subscribe(Stepped, self._stepped)
        log.subscribe(Finished, lambda event: engines[event.engine].ended(event.request_id, event))
        log.subscribe(Prefilled, lambda event: engines[event.engine].ended(
            event.request_id, Finished(event.time, event.request_id, event.engine)))
        log.subscribe(Failed, lambda event: self._failed(event.request_id))
        for kind in (Rejected, Refused):
            log.subscribe(kind, self._count_refusal)

    def transferred(self, event: Transferred) -> None:
        """The KV of a request has gone from one engine to another."""
        self.engines[event.target].transferred(event)

    def _stepped(self, step: Stepped) -> None:
        self.engines[step.engine].stepped(step)

    def _failed(self, request: int) -> None:
        for engine in self.engines:
            engine.ended(request)

    def _count_refusal(self, _: object) -> None:
        self._refused += 1

    def aborted(self, request: int) -> None:
        """The client of *request* has disconnected; as in vLLM, that counts as no end."""
        self._failed(request)

    @property
    def kept(self) -> int:
        """How many requests and sequences are remembered: none, once all have ended."""
        return sum(engine.kept for engine in self.engines)

    def text(self, *others: MetricFamily) -> bytes:
        """All metrics as they are now, those of *others* and of this process."""
        for engine in self.engines:
            engine.set_gauges()
        return text([*self.families.by_name.values(), *self.further_families(), *self._ksim_families(), *others])

    def further_families(self) -> Sequence[MetricFamily]:
        """vLLM's lora_requests_info, if adapters are served."""
        slots = max(engine.max_loras for engine in self.live.log.engines)
        if not slots:
            return ()
        family = MetricFamily("vllm:lora_requests_info", "gauge", "LoRA adapters of the requests, and when it was so.")
        now = [engine.adapters() for engine in self.engines]
        waiting, running = (",".join(dict.fromkeys(name for both in now for name in both[side])) for side in (0, 1))
        family.count({"max_lora": str(slots), "waiting_lora_adapters": waiting,
                      "running_lora_adapters": running}).value = time()
        return [family]

    def _ksim_families(self) -> list[MetricFamily]:
        """Metrics that vLLM does not have."""
        live = self.live
        values = [("ksim:simulated_seconds", "gauge", "Simulated seconds since the first request.", live.now),
                  ("ksim:speed", "gauge", "Simulated seconds in a second of the wall clock.", live.speed),
                  ("ksim:lag_seconds", "gauge", "Worst lateness of tokens in the last 10 to 20 seconds.",
                   live.lag),
                  ("ksim:requests_in_flight", "gauge", "Requests that have not ended.", len(live.handles)),
                  ("ksim:requests_refused", "counter", "Requests that no engine served.", self._refused)]
        families = list[MetricFamily]()
        for name, kind, description, value in values:
            family = MetricFamily(name, kind, description)
            family.count({"model_name": self.model_name}).value = value
            families.append(family)
        return families
