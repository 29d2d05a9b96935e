"""Forecasts of the first and the last token of a request on an engine as it is now, if no other request comes.

A few turns are played ahead: prompts in the order of arrival, in chunks, beside all sequences that decode.  Those end
when they really will.  What is left out: preemptions, other orders than that of arrival, drafts, images, adapters, and
the other engines of a data-parallel group.  After `TURNS` turns the rest goes on as fast as these did.

How long an engine's steps take, from few of them that its timers have priced: what an operator measures offline.

What a gateway estimates of the prefills that it has sent: how long each takes alone, and which are not done.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import exp2, inf, log2
from typing import Any

from attrs import Factory, define, field, frozen

from ksim.engine.loop_times import LoopTimes
from ksim.flow.batch import Batch, Contexts, Offsets
from ksim.flow.request import Request
from ksim.specs.host import Host

__all__ = ["StepModel", "models_of", "Forecast", "forecast", "PrefillQueues"]


#: Prompt tokens are rounded to so many sizes an octave, sequences that decode to so many.
SIZES, WIDTHS = 8, 4
#: Tokens in the cache of sequences that decode, and of a chunk of a prompt, at which steps are priced.
DECODED, CHUNKED = 1024, 4096
#: Prefills that are kept, as many engines are asked about the same.
MOST = 1024


@frozen
class _Priced:
    """A step of some size: its seconds, what each token in the cache adds to them, and the seconds of its launch."""

    seconds: float
    per_decoded: float
    per_chunked: float
    launch: float


@define(eq=False)
class StepModel:
    """Steps as `timers` price them, one for each pipeline stage, which run one after another.

    A step's numbers of tokens and sequences are rounded; in the tokens that these have in the cache, it is linear.
    A step has at most `budget` tokens.
    """

    timers: Sequence[Any]
    host: Host
    workers: int
    budget: int
    _known: dict[tuple[int, int], _Priced] = field(factory=dict, init=False)
    _prefills: dict[tuple[int, int], float] = field(factory=dict, init=False)

    def seconds(self, tokens: int, before: int, decodes: int = 0, cached: int = 0) -> tuple[float, float]:
        """The seconds of a step, and those to launch it: *tokens* of prompts after *before* cached ones, beside so many
        sequences that decode with *cached* tokens in all."""
        size, width = _rounded(tokens, SIZES), _rounded(decodes, WIDTHS)
        priced = self._known.get((size, width)) or self._price(size, width)
        seconds = (priced.seconds + priced.per_chunked * before
                   + priced.per_decoded * (cached - DECODED * decodes) if decodes else
                   priced.seconds + priced.per_chunked * before)
        return max(seconds, 0.0), priced.launch

    def per_sequence(self, decodes: int, context: int) -> float:
        """Seconds that one of so many decoding sequences adds to a step, with *context* tokens in the cache."""
        width = _rounded(decodes, WIDTHS)
        fewer, more = (self._known.get((0, size)) or self._price(0, size) for size in (width, 2 * width))
        return max((more.seconds - fewer.seconds) / width + fewer.per_decoded * (context - DECODED), 0.0)

    def prefill(self, tokens: int, before: int) -> float:
        """The seconds in which an engine without other work computes *tokens* of a prompt after *before* cached ones.
        """
        known = self._prefills.get((tokens, before))
        if known is not None:
            return known
        if len(self._prefills) >= MOST:
            self._prefills.clear()
        spent = self._prefills[tokens, before] = self._chunks(tokens, before)
        return spent

    def _chunks(self, tokens: int, before: int) -> float:
        spent = 0.0
        while tokens > 0:
            chunk = min(tokens, self.budget)
            seconds, launch = self.seconds(chunk, before)
            spent += max(seconds, launch)
            tokens, before = tokens - chunk, before + chunk
        return spent

    def _price(self, size: int, width: int) -> _Priced:
        batches = (_batch(size, 0, width, DECODED), _batch(size, 0, width, 2 * DECODED),
                   _batch(size, CHUNKED, width, DECODED))
        plain, decoded, chunked = ([timer.summarize(batch) for timer in self.timers] for batch in batches)
        seconds, others, deep = (sum(float(load.seconds) for load in loads) for loads in (plain, decoded, chunked))
        made = self._known[size, width] = _Priced(
            seconds, (others - seconds) / (DECODED * width) if width else 0.0, (deep - seconds) / CHUNKED,
            sum(float(load.launch_seconds) for load in plain))
        return made


def models_of(engines: Sequence[Any]) -> dict[int, StepModel]:
    """The step model of each of *engines*, by its number; those that price alike share one."""
    shared: dict[Any, StepModel] = {}
    return {engine.number: shared.setdefault(_kind(engine), StepModel(
        engine.timers, engine.host, engine.workers, engine.scheduler.limits.max_num_batched_tokens))
            for engine in engines}


def _kind(engine: Any) -> Any:
    """A key of *engine* that is equal for engines whose steps take equally long."""
    parts = [(id(timer.model), id(timer.gpu), timer.shard) for timer in engine.timers if hasattr(timer, "gpu")]
    return (*parts, id(engine.host), engine.scheduler.limits) if len(parts) == len(engine.timers) else engine.number


def _rounded(count: int, steps: int) -> int:
    """*count*, or a number near it of which there are so many (*steps*) an octave."""
    return count if count <= steps else round(exp2(round(log2(count) * steps) / steps))


def _batch(size: int, before: int, width: int, cached: int) -> Batch:
    chunks = [(size, before)] if size else []
    return Batch(Contexts(Offsets([cached] * width)), chunks, width + len(chunks), size + width,
                 [(-1, *chunk) for chunk in chunks])


#: Turns that are played before the rest is extrapolated.
TURNS = 64


@frozen
class Forecast:
    """The times at which a request gets its `first` and its `last` token, and what it costs others.

    `delays` are the seconds by which it delays the last tokens of those that are on the engine, in all.
    """

    first: float
    last: float
    delays: float


@define(eq=False)
class _Prompt:
    """A sequence with so many tokens of its prompt to compute (`left`) after those `computed`; it came at `arrival`.

    Its engine needs `blocks` for the prompt, and it gets `output` tokens more.
    """

    left: int
    computed: int
    output: int
    blocks: int = 0
    arrival: float = -inf


@define(eq=False)
class _Play:
    """An engine's turns from now on."""

    model: StepModel
    times: LoopTimes
    depth: int
    budget: int
    places: int
    free: int
    block_tokens: int
    prompts: list[_Prompt]
    waiting: deque[_Prompt]
    decodes: list[list[int]]  # tokens to come that no batch in flight brings, tokens in the cache; the next to end last
    computed: int = field(default=0, init=False)
    #: Batches that are not taken in, and when users had the tokens of the one that was taken in last.
    flying: int = field(default=Factory(lambda self: self.times.in_flight, takes_self=True), init=False)
    came: float = field(default=0.0, init=False)
    delays: float = field(default=0.0, init=False)  # of all others, by our prompt, in seconds

    def until(self, ours: _Prompt, now: float) -> tuple[float, float]:
        """The time of the first token of *ours*, and the seconds of each of its next ones."""
        self._decode(0)  # those whose last token is in flight give their blocks back
        for _ in range(TURNS):
            if not (self.prompts or self.decodes or self.waiting[0].arrival <= self.times.now):
                self.times.wake(self.waiting[0].arrival)
            self._turn(ours)
            if not ours.left:
                return self._first_token(), self._pace()
        self.delays += self.model.prefill(ours.left, ours.computed) * self._others()
        return self._extrapolated(now), self._pace()

    def _others(self) -> int:
        """The number of requests on the engine beside ours."""
        return len(self.prompts) + len(self.waiting) + len(self.decodes) - 1

    def decoding_delays(self, context: int, output: int) -> float:
        """Seconds by which ours delays all others while it decodes, with so many tokens in the cache."""
        turns = sum(min(sequence[0], output) for sequence in self.decodes)
        turns += sum(min(prompt.output, output) for prompt in (*self.prompts, *self.waiting))
        return turns * self.model.per_sequence(len(self.decodes) + 1, context)

    def _first_token(self) -> float:
        """The time at which users have the tokens of the last batch: after the next launch, if there is one."""
        if self.flying and self.decodes:
            self._launch(*self._decoding(), len(self.decodes))
        elif self.flying:
            self._finish()
        return self.came

    def _turn(self, ours: _Prompt) -> None:
        """Take a turn, or as many as are alike."""
        decodes, cached = len(self.decodes), sum(sequence[1] for sequence in self.decodes)
        chunks = self._chunks(self.budget - decodes)
        tokens = sum(chunk for _, chunk in chunks)
        before = sum(prompt.computed * chunk for prompt, chunk in chunks) // max(tokens, 1)
        seconds, launch = self.model.seconds(tokens, before, decodes, cached)
        self._launch(seconds, launch, decodes + len(chunks), tokens // self.block_tokens)
        if chunks and chunks[-1][0] is ours:
            alone = self._period(*self.model.seconds(0, 0, decodes, cached), decodes) if decodes else 0.0
            longer = max(self._period(seconds, launch, decodes + len(chunks)) - alone, 0.0)
            self.delays += longer * chunks[-1][1] / tokens * self._others()
        if not chunks:
            self._repeat(self._period(seconds, launch, decodes))
        self._decode(1)
        for prompt, chunk in chunks:
            prompt.left, prompt.computed = prompt.left - chunk, prompt.computed + chunk
        self._settle()
        self.computed += tokens

    def _chunks(self, budget: int) -> list[tuple[_Prompt, int]]:
        """The chunks of prompts that the next turn computes; those that wait are admitted if there is room."""
        chunks = []
        for prompt in self.prompts:
            if budget > 0:
                chunks.append((prompt, min(prompt.left, budget)))
                budget -= chunks[-1][1]
        while budget > 0 and self.waiting and self._has_room(self.waiting[0]):
            prompt = self.waiting.popleft()
            self.free -= prompt.blocks
            self.prompts.append(prompt)
            chunks.append((prompt, min(prompt.left, budget)))
            budget -= chunks[-1][1]
        return chunks

    def _has_room(self, prompt: _Prompt) -> bool:
        alone = not (self.prompts or self.decodes)
        return prompt.arrival <= self.times.now and (alone or (
            len(self.prompts) + len(self.decodes) < self.places and prompt.blocks <= self.free))

    def _launch(self, seconds: float, launch: float, sequences: int, blocks: int = 0) -> None:
        """Launch a batch, and take in the oldest if there are as many in flight as there may be."""
        _, launched, start = self.times.prepare(sequences, blocks, launch)
        self.times.compute(launched, start, seconds, sequences)
        self.flying += 1
        if self.flying >= self.depth:
            self._finish()

    def _finish(self) -> None:
        _, self.came = self.times.finish()
        self.flying -= 1

    def _repeat(self, seconds: float) -> None:
        """Take the turns in which nothing changes at once, of so many *seconds* each."""
        turns = self.decodes[-1][0] - 1 if self.decodes else 0
        if self.waiting and self._has_room(self.waiting[0]):  # it came while the batch was launched
            turns = 0
        elif self.waiting and self.waiting[0].arrival > self.times.now:
            turns = min(turns, int((self.waiting[0].arrival - self.times.now) / seconds))
        late = max(turns, 0) * seconds
        self.times.now += late
        self.times.worker += late
        self.times.shift(late)
        self._decode(max(turns, 0))

    def _decode(self, turns: int) -> None:
        for sequence in self.decodes:
            sequence[0] -= turns
            sequence[1] += turns
        while self.decodes and self.decodes[-1][0] <= 0:
            self.free += self.decodes.pop()[1] // self.block_tokens

    def _settle(self) -> None:
        """Move the requests whose prompt is computed to those that decode."""
        done = [prompt for prompt in self.prompts if not prompt.left]
        if done:
            self.prompts = [prompt for prompt in self.prompts if prompt.left]
            self.free += sum(prompt.blocks for prompt in done if prompt.output == 1)
            self.decodes += [[prompt.output - 1, prompt.computed] for prompt in done if prompt.output > 1]
            self.decodes.sort(key=lambda sequence: -sequence[0])

    def _pace(self) -> float:
        """The seconds of a turn in which those that decode now do, and ours."""
        return self._period(*self._decoding(), max(len(self.decodes), 1))

    def _decoding(self) -> tuple[float, float]:
        """The seconds of a step of those that decode, and those to launch it."""
        return self.model.seconds(0, 0, max(len(self.decodes), 1), sum(sequence[1] for sequence in self.decodes))

    def _period(self, seconds: float, launch: float, sequences: int) -> float:
        """The seconds from turn to turn while all are like one that takes GPUs so many *seconds*."""
        host, workers = self.times.host, self.times.workers
        pace = host.pace.at(self.times.now)
        loop = pace * (host.core.making(sequences, 0, workers) + host.core.taking(sequences))
        prepare, launch = pace * host.worker.preparing(sequences), pace * launch
        worker = prepare + launch
        if self.depth == 1:
            return loop + prepare + max(seconds, launch)
        return max(seconds, loop, worker) if workers > 1 else max(seconds, loop + worker)

    def _extrapolated(self, now: float) -> float:
        left = sum(prompt.left for prompt in (*self.prompts, *self.waiting))
        spent = self.times.now - now
        return self.times.now + (left / self.computed if self.computed else len(self.waiting)) * spent


def forecast(engine: Any, request: Request, model: StepModel, hits: Mapping[int, int], now: float) -> Forecast:
    """Forecast *request* on *engine*, if it sets out *now*; *model* says how long the engine's steps take.

    *hits* has the tokens that the cache has of its prompt, and of others that wait, by their ids.
    """
    scheduler, client = engine.scheduler, engine.host.client
    cache, limits = scheduler.cache, scheduler.limits

    def prompt(one: Request, sampled: int = 0, arrival: float = -inf) -> _Prompt:
        known, output = one.prompt + sampled, min(one.output, limits.max_model_len - one.prompt) - sampled
        hit = min(hits.get(one.id, 0), known - 1)
        return _Prompt(known - hit, hit, output, cache.blocks(known) - hit // cache.block_tokens, arrival)

    ours = prompt(request, arrival=now + client.accept + client.travel + client.travel_token * request.prompt)
    waiting = [prompt(job.request, job.sampled) for job in scheduler.waiting]
    coming = [prompt(one, arrival=arrival) for arrival, one in getattr(engine, "coming", ())]
    prompts, decodes = _running(scheduler, engine.settling)
    play = _Play(
        model, _times(engine, now), limits.depth, limits.max_num_batched_tokens, limits.active, cache.pool.free,
        cache.block_tokens, prompts, deque((*waiting, *coming, ours)), decodes)
    first, pace = play.until(ours, now)
    delays = play.delays + play.decoding_delays(request.prompt + ours.output // 2, ours.output - 1)
    return Forecast(first, first + pace * (ours.output - 1), delays)


def _times(engine: Any, now: float) -> LoopTimes:
    """The engine's clock as it is; one that begins *now* where the engine does not know when its batches end.

    An engine that waits for a transfer goes on no earlier than *now*.
    """
    times = (getattr(engine, "times", None) or LoopTimes(engine.host, engine.workers, now, now, now, now)).copy()
    times.now = max(times.now, now)
    return times


def _running(scheduler: Any, settling: Any = None) -> tuple[list[_Prompt], list[list[int]]]:
    """The prompt tokens that running jobs must compute, and the output tokens of the others, after *settling*."""
    sampled = {entry.job for entry in settling.schedule.entries if entry.samples} if settling else ()
    prompts, decodes = list[_Prompt](), scheduler.foreseen
    for job in scheduler.others:
        left = job.num_tokens - job.num_computed_tokens
        output = min(job.output, scheduler.limits.max_model_len - job.request.prompt) - job.sampled
        output -= job.num_output_placeholders or job in sampled
        if left > 1 and not job.decoding:
            prompts.append(_Prompt(left, job.num_computed_tokens, output))
        else:
            decodes.append([output, job.num_computed_tokens])
    decodes.sort(key=lambda sequence: -sequence[0])
    return prompts, decodes


@define
class PrefillQueues:
    """The seconds of prefill that each engine has before it, by the numbers of engines and the ids of requests.

    As in Mooncake (section 6.1), a prefill takes what a model says that was fitted offline, from the prompt's length
    and how much of it is cached, and a queue takes the sum of its prefills.  One that runs counts in full until its
    first token comes.
    """

    models: Mapping[int, StepModel] = field(factory=dict)
    _seconds: dict[int, dict[int, float]] = field(factory=dict, init=False)
    _sums: dict[int, float] = field(factory=dict, init=False)

    def queue(self, engine: int) -> float:
        """Seconds until *engine* can begin with another prompt."""
        return self._sums.get(engine, 0.0)

    def prefill(self, engine: int, prompt: int, cached: int) -> float:
        """Seconds in which *engine* computes a *prompt* of which it has so many tokens *cached*."""
        cached = min(cached, prompt - 1)
        return self.models[engine].prefill(prompt - cached, cached)

    def add(self, engine: int, request: int, seconds: float) -> None:
        """Note that a *request* whose prefill takes so many *seconds* is sent to *engine*."""
        self.remove(engine, request)
        self._seconds.setdefault(engine, {})[request] = seconds
        self._sums[engine] = self._sums.get(engine, 0.0) + seconds

    def remove(self, engine: int, request: int) -> None:
        """Note that the prefill of a *request* is done."""
        own = self._seconds.get(engine)
        if own and request in own:
            self._sums[engine] -= own.pop(request)
            if not own:
                self._sums[engine] = 0.0

    def clear(self, engine: int) -> None:
        """Note that *engine* has nothing to do."""
        self._seconds.pop(engine, None)
        self._sums.pop(engine, None)
