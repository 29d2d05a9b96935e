"""A plausible log without an engine: a toy batch scheduler with made-up kernel times."""

from collections import deque
from functools import cache

import numpy as np
from attrs import define, field

from ksim.flow.batch import Batch
from ksim.flow.events import (
    Admitted,
    Arrived,
    Emitted,
    EngineBuilt,
    Event,
    Finished,
    Preempted,
    Rejected,
    Routed,
    Stepped,
)
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.flow.steps import KernelCost, PricedBlock, StepCost

PEAK_FLOPS, PEAK_BANDWIDTH, HOST = 990e12, 4.8e12, 300e-6
LAYERS, HIDDEN, FFN = 32, 4096, 14336


def built(engine: int, ranks: int = 1, stages: int = 1) -> EngineBuilt:
    return EngineBuilt(engine, f"llama/{engine}", "h200", ranks, stages, 12000, 16, PEAK_FLOPS, PEAK_BANDWIDTH,
                       static_watts=120.0, memory=141e9, weights=16e9)


def _gemm(label: str, tokens: int, n: int, k: int, ranks: int) -> KernelCost:
    flops, moved = 2.0 * tokens * n * k / ranks, 2.0 * (n * k / ranks + tokens * (n / ranks + k))
    compute, memory = flops / (0.7 * PEAK_FLOPS), moved / (0.8 * PEAK_BANDWIDTH)
    waves = max(1.0, tokens / 128 * n / ranks / 128) / 132
    return KernelCost.of(label, "gemm", max(compute, memory, 3e-6), joules=flops * 3e-13 + moved * 4e-11, flops=flops,
                bytes=moved, bound="compute" if compute > memory else "memory", waves=waves,
                idle=float(np.ceil(waves) - waves) / float(np.ceil(waves)), shape=f"{tokens}x{n}x{k}", source="made up")


def _pointwise(label: str, tokens: int) -> KernelCost:
    moved = 4.0 * tokens * HIDDEN
    memory = moved / (0.6 * PEAK_BANDWIDTH)
    return KernelCost.of(label, "elementwise", max(memory, 2.2e-6), joules=moved * 4e-11, flops=tokens * HIDDEN * 4.0,
                bytes=moved, bound="memory" if memory > 2.2e-6 else "launch", waves=tokens / 132,
                shape=f"{tokens}x{HIDDEN}", source="floor")


def _attention(batch: Batch, ranks: int) -> KernelCost:
    cached = batch.contexts.total + sum(new + context for new, context in batch.chunks)
    pairs = batch.contexts.total + sum(new * (context + new / 2) for new, context in batch.chunks)
    flops, moved = 4.0 * HIDDEN * pairs / ranks, 4096.0 * cached / ranks
    compute, memory = flops / (0.5 * PEAK_FLOPS), moved / (0.7 * PEAK_BANDWIDTH)
    return KernelCost.of("attention", "attention", max(compute, memory, 4e-6), joules=flops * 3e-13 + moved * 4e-11,
                         flops=flops, bytes=moved, bound="compute" if compute > memory else "memory",
                         waves=batch.sequences / 4, shape=f"{batch.sequences} sequences", source="made up")


@cache
def _laps(tokens: int, ranks: int, stages: int) -> tuple[PricedBlock, ...]:
    layer: list[KernelCost | int] = [
        _pointwise("norm", tokens), _gemm("qkv", tokens, 6144, HIDDEN, ranks), 0,
        _gemm("out", tokens, HIDDEN, HIDDEN, ranks), _gemm("gate_up", tokens, 2 * FFN, HIDDEN, ranks),
        _pointwise("silu_mul", tokens), _gemm("down", tokens, HIDDEN, FFN, ranks),
    ]
    if ranks > 1:
        layer.append(KernelCost.of("all_reduce", "all-reduce", 8e-6 + tokens * 2e-8, joules=1e-3,
                                   bytes=2.0 * tokens * HIDDEN, bound="communication", group="tensor",
                                   shape=f"{tokens}x{HIDDEN}", source="ring"))
    head = _gemm("lm_head", min(tokens, 256), 128256, HIDDEN, ranks)
    return PricedBlock.of(tuple(layer), LAYERS // stages), PricedBlock.of((head,))


def step_costs(batch: Batch, ranks: int = 1, stages: int = 1) -> tuple[StepCost, ...]:
    # Captured graphs come in a few sizes, so that many steps share their laps.
    padded = next((size for size in (1, 2, 4, 8, *range(16, 257, 8)) if size >= batch.tokens), batch.tokens)
    return tuple(
        StepCost.of(_laps(padded, ranks, stages), [_attention(batch, ranks)]) for _ in range(stages))


@define
class _Running:
    request: Request
    done: int = 0
    out: int = 0
    since: int = -1
    known: int = 0  # when it was admitted


@define
class _Engine:
    """One engine of the fabricated cluster, stepping on its own clock."""

    id: int
    ranks: int
    stages: int
    budget: int
    seats: int
    now: float = 0.0
    index: int = 0
    arrivals: deque[Request] = field(factory=deque)
    waiting: deque[_Running] = field(factory=deque)
    running: list[_Running] = field(factory=list)
    events: list[Event] = field(factory=list)

    def run(self, preempt_every: int) -> None:
        while self.arrivals or self.waiting or self.running:
            self._receive()
            if not self.waiting and not self.running:
                self.now = self.arrivals[0].arrival
                continue
            if preempt_every and self.index % preempt_every == preempt_every - 1 and len(self.running) > 2:
                self._preempt(self.running.pop())
            self._step()

    def _receive(self) -> None:
        while self.arrivals and self.arrivals[0].arrival <= self.now:
            self.waiting.append(_Running(self.arrivals.popleft()))

    def _preempt(self, victim: _Running) -> None:
        self._emit(victim)
        victim.done = 0
        self.waiting.appendleft(victim)
        self.events.append(Preempted(self.now, victim.request.id, self.id))

    def _emit(self, job: _Running) -> None:
        if job.since >= 0:
            self.events.append(Emitted(self.now, job.request.id, self.id, job.since, self.index - 1))
            job.since = -1

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.seats:
            job = self.waiting.popleft()
            again, known = job.known > 0, job.request.prompt + job.out
            job.known = known
            job.done = (job.request.prompt // 64) * 16 if job.request.id % 2 else 0
            self.events.append(Admitted(self.now, job.request.id, self.id, job.done, known, again))
            self.running.append(job)

    def _step(self) -> None:
        self._admit()
        budget, plan = self.budget, []
        for job in self.running:
            new = min(job.request.prompt + job.out - job.done, budget)
            if new > 0:
                plan.append((job, new))
                budget -= new
        sampling = [job for job, new in plan if job.done + new == job.request.prompt + job.out]
        prompts = [(job.request.id, new, job.done) for job, new in plan if job.done < job.known]
        batch = Batch.of(*((new, job.done) for job, new in plan), samples=len(sampling), prompts=prompts)
        self._log(batch)
        for job, new in plan:
            job.done += new
        for job in sampling:
            job.out += 1
            job.since = self.index - 1 if job.since < 0 else job.since
            if job.out == job.request.output:
                self._emit(job)
                self.events.append(Finished(self.now, job.request.id, self.id))
                self.running.remove(job)

    def _log(self, batch: Batch) -> None:
        lanes = step_costs(batch, self.ranks, self.stages)
        start = self.now + HOST
        end = start + sum(lane.seconds for lane in lanes)
        blocks = sum(-(-job.request.prompt // 16) for job in self.running)
        taken = end + 1e-4
        self.events.append(Stepped(taken, self.id, self.index, self.now, start, start, end, taken, batch,
                                   len(self.waiting), len(self.running), blocks, lanes))
        self.now, self.index = end + 1e-4, self.index + 1


def requests(count: int, rate: float, output: int, seed: int = 1) -> list[Request]:
    """Poisson arrivals with log-normal lengths."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rate, count))
    prompts = np.clip(random.lognormal(6, 0.9, count), 8, 8000).astype(int)
    outputs = np.clip(random.lognormal(np.log(output) - 0.25, 0.7, count), 1, 10 * output).astype(int)
    return [Request(i, float(a), int(p), int(o), session=f"s{i % 7}" if i % 3 else "")
            for i, (a, p, o) in enumerate(zip(arrivals, prompts, outputs, strict=True))]


def log(count: int = 60, *, rate: float = 12.0, output: int = 24, engines: int = 1, ranks: int = 1, stages: int = 1,
        preempt_every: int = 37, seats: int = 64) -> Log:
    """A run of *count* requests over *engines* engines; every fiftieth request is rejected."""
    cluster = [_Engine(number, ranks, stages, 2048, seats) for number in range(engines)]
    arrived: list[Event] = []
    for request in requests(count, rate, output):
        arrived.append(Arrived(request.arrival, request))
        if request.id % 50 == 49:
            arrived.append(Rejected(request.arrival, request.id, "prompt longer than max_model_len"))
            continue
        engine = cluster[request.id % engines]
        arrived.append(Routed(request.arrival, request.id, engine.id))
        engine.arrivals.append(request)
    for engine in cluster:
        engine.run(preempt_every)
    events = arrived + [event for engine in cluster for event in engine.events]
    order = {Arrived: 0, Rejected: 1, Routed: 1, Stepped: 2, Emitted: 3, Finished: 4, Preempted: 4, Admitted: 5}
    events.sort(key=lambda event: (event.time, order[type(event)]))
    return Log([built(number, ranks, stages) for number in range(engines)], events)


def cut(whole: Log, end: float) -> Log:
    """What had happened by *end*."""
    return Log(whole.engines, [event for event in whole.events if event.time <= end])


def pipelined(steps: int = 6) -> Log:
    """One request on two pipeline stages, whose second step begins before the first one is through."""
    request = Request(3, 0.0, 64, steps)
    events: list[Event] = [Arrived(0.0, request), Routed(0.0, 3, 0), Admitted(0.0, 3, 0, 0, 64)]
    start = 0.0
    for index in range(steps):
        batch = Batch.of((1, 63 + index)) if index else Batch.of((64, 0), prompts=[(3, 64, 0)])
        lanes = step_costs(batch, ranks=2, stages=2)
        end = start + sum(lane.seconds for lane in lanes)
        events.append(Stepped(end, 0, index, start, start, start, end, end, batch, 0, 1, 5, lanes))
        start += lanes[0].seconds
    last = events[-1].time
    events += [Emitted(last, 3, 0, 0, steps - 1), Finished(last, 3, 0)]
    return Log([built(0, ranks=2, stages=2)], events)
