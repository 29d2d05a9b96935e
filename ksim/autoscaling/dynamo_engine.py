"""What Dynamo's planner asks of an engine: how long its queue takes, its next token, and the rate that it carries.

Rules are those of dynamo/planner/core/perf_model, 1.6.1, engine_query.py and ais_adapter.py.  Times are in seconds.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from math import ceil, isfinite
from typing import Protocol

import numpy as np
from attrs import define, evolve, field, frozen

from ksim.autoscaling import EngineLimits, Load

#: The most batch sizes that are tried, and the largest discount for prefix hits.
_CANDIDATES, _MOST_HITS = 128, 0.95
#: Fewest and most passes that a model learns from.
_LEAST_PASSES, _MOST_PASSES = 5, 64


class PassModel(Protocol):
    """How long a forward pass takes."""

    def learn(self, loads: Iterable[Load]) -> None:
        """Take what engines have reported of their last passes."""
        ...

    def seconds(self, prefill_tokens: int, decode_requests: int, decode_kv: int) -> float | None:
        """The time of a pass; None while too little is known."""
        ...


@define
class LearntPasses:
    """A linear model of passes, fitted to the last that were seen: tokens of prompts, requests and KV of decodes.

    A load that would make passes shorter is left out of it.
    """

    _seen: deque[tuple[tuple[float, float, float], float]] = field(
        factory=lambda: deque(maxlen=_MOST_PASSES), init=False)
    _coefficients: "np.ndarray | None" = field(default=None, init=False)

    def learn(self, loads: Iterable[Load]) -> None:
        for load in loads:
            if load.wall > 0:
                row = (float(load.prefill_tokens), float(load.decode_requests), float(load.decode_kv))
                self._seen.append((row, load.wall))
                self._coefficients = None

    def seconds(self, prefill_tokens: int, decode_requests: int, decode_kv: int) -> float | None:
        if len(self._seen) < _LEAST_PASSES:
            return None
        if self._coefficients is None:
            self._coefficients = self._fit()
        return max(1e-6, float(self._coefficients @ (prefill_tokens, decode_requests, decode_kv, 1.0)))

    def _fit(self) -> "np.ndarray":
        """Least squares, again without the loads whose coefficients are negative until there are none.

        What has always been the same counts as part of the constant.
        """
        rows, walls = np.array([row for row, _ in self._seen]), np.array([wall for _, wall in self._seen])
        middle, found, kept = rows.mean(axis=0), np.zeros(3), [0, 1, 2]
        while kept:
            found[:] = 0.0
            found[kept] = np.linalg.lstsq((rows - middle)[:, kept], walls - walls.mean(), rcond=None)[0]
            wrong = [index for index in kept if found[index] < 0]
            if not wrong:
                break
            kept = [index for index in kept if index not in wrong]
            found[wrong] = 0.0
        return np.array([*found, walls.mean() - found @ middle])


@frozen
class Target:
    """The largest time to the first token and between tokens; None where it does not count."""

    ttft: float | None = None
    itl: float | None = None

    def meets(self, ttft: float | None, itl: float | None) -> bool:
        """Whether latencies are within it; None is one that the engine has not."""
        return ((self.ttft is None or ttft is None or ttft <= self.ttft)
                and (self.itl is None or itl is None or itl <= self.itl))


@frozen
class Shape:
    """A typical request: tokens of its prompt and answer, the share of its prefix hits, and tokens of a step."""

    prompt: int
    output: int
    hit_rate: float | None = None
    accept_length: float = 1.0

    @property
    def computed(self) -> int:
        """Tokens of the prompt that are computed."""
        return max(1, ceil(self.prompt * (1.0 - discount(self.hit_rate))))

    @property
    def context(self) -> int:
        """Tokens of the mean context while it is decoded."""
        return max(1, self.prompt + self.output // 2)


def discount(hit_rate: float | None) -> float:
    """The share of prompts that counts as cached: at most 95 %, so that a queue is never nothing."""
    return 0.0 if hit_rate is None or not isfinite(hit_rate) else min(_MOST_HITS, max(0.0, hit_rate))


@define
class _Average:
    """The mean of the last values, of a running sum as there; zeros before the first other one are skipped."""

    _values: deque[float] = field(factory=deque, init=False)
    _sum: float = field(default=0.0, init=False)
    _seen: bool = field(default=False, init=False)

    def add(self, value: float) -> None:
        self._seen = self._seen or value > 0
        if self._seen:
            self._values.append(max(0.0, value))
            self._sum += self._values[-1]
            if len(self._values) > _MOST_PASSES:
                self._sum -= self._values.popleft()

    @property
    def value(self) -> float:
        return self._sum / len(self._values) if self._values else 0.0


@define
class EngineModel:
    """The engines of one role: `prefill`, `decode` or `aggregated`."""

    role: str
    limits: EngineLimits
    passes: PassModel
    _prompt: _Average = field(factory=_Average, init=False)
    _context: _Average = field(factory=_Average, init=False)
    _mixed: _Average = field(factory=_Average, init=False)

    def observe(self, loads: Sequence[Load]) -> None:
        """Learn from what each engine reports."""
        for load in loads:
            self._prompt.add(load.prefill_tokens / load.prefill_requests if load.prefill_requests else 0.0)
            if load.decode_requests:
                self._context.add(load.decode_kv / load.decode_requests)
        for index in sorted(range(len(loads)), key=str):  # there in the order of names as texts: 10 before 2
            self._mixed.add(float(loads[index].prefill_tokens))
        self.passes.learn(loads)

    @property
    def is_ready(self) -> bool:
        return self.passes.seconds(0, 0, 0) is not None

    # What a load does to the next request.

    def ttft(self, load: Load, hit_rate: float | None = None, queue_scale: float = 1.0, decode_scale: float = 1.0,
             queued_decodes: bool = False) -> float | None:
        """The time to the first token of one more request of the mean length behind the queue of *load*, scaled."""
        more = self._prompt.value
        tokens = _up((load.queued_prefill_tokens * queue_scale + more) * (1.0 - discount(hit_rate)))
        if self.role == "prefill":
            return self._chunks(tokens, 0, 0)
        load = evolve(load, queued_prefill_tokens=0, queued_prefill_requests=0)
        requests, kv = _decodes(load, decode_scale, queued_decodes)
        return self._chunks(tokens, _up(requests), _up(kv))

    def itl(self, load: Load, decode_scale: float = 1.0, prompts_as_kv: bool = False) -> float | None:
        """The time between tokens with one more request of the mean context; queued prompts may count as KV."""
        if not prompts_as_kv:
            load = evolve(load, queued_prefill_tokens=0, queued_prefill_requests=0)
        requests, kv = _decodes(load, decode_scale, queued=True)
        more = self._context.value
        requests, kv = _up(requests + (1.0 if more > 0 else 0.0)), _up(kv + more)
        return self.passes.seconds(0 if self.role == "decode" else _up(self._mixed.value), requests, kv)

    def _chunks(self, tokens: int, decode_requests: int, decode_kv: int) -> float | None:
        """The time of prompts of so many *tokens*, in chunks of whole batches beside decodes."""
        full, rest = divmod(tokens, self.limits.max_num_batched_tokens)
        total = 0.0
        for count, chunk in ((full, self.limits.max_num_batched_tokens), (1 if rest else 0, rest)):
            if count:
                duration = self.passes.seconds(chunk, decode_requests, decode_kv)
                if duration is None:
                    return None
                total += duration * count
        return total

    # The rate that an engine carries.

    def rate(self, shape: Shape, target: Target) -> float | None:
        """The most requests/s of *shape* within *target*; if no batch meets it, the most of all.

        None while the model is not ready, and where an engine holds no such request.
        """
        find = {"prefill": self._prefills, "decode": self._decodes}.get(self.role, self._mixes)
        best: tuple[bool, float] | None = None
        for meets, rate in find(shape, target):
            if rate is None:
                return None
            if best is None or (meets, rate) > best:
                best = meets, rate
        return None if best is None else best[1]

    def _prefills(self, shape: Shape, target: Target) -> "_Rates":
        """Whole prompts at once, as many as a batch has room for."""
        fits = self.limits.max_num_batched_tokens // shape.computed
        for batch in _sizes(min(self.limits.max_num_seqs, fits) if fits else 1):
            ttft = self._chunks(shape.computed * batch, 0, 0)
            yield from _candidate(batch, ttft, target.meets(ttft, None))

    def _decodes(self, shape: Shape, target: Target) -> "_Rates":
        accept = max(1.0, shape.accept_length)
        for batch in _sizes(self._most_decodes(shape)):
            seconds = self.passes.seconds(0, batch, batch * shape.context)
            itl = None if seconds is None else seconds / accept
            meets = target.meets(None, itl)
            yield from _candidate(batch, None if itl is None else shape.output * itl, meets)

    def _mixes(self, shape: Shape, target: Target) -> "_Rates":
        """Prompts beside decodes, as many tokens in each pass as requests end in it."""
        most, accept = self.limits.max_num_batched_tokens, max(1.0, shape.accept_length)
        for batch in _sizes(min(self._most_decodes(shape), max(1, most - 1))):
            prompts = _up(batch * accept * shape.computed / max(1, shape.output))
            if most - batch <= 0 or prompts > most - batch:
                continue
            kv = batch * shape.context
            seconds = self.passes.seconds(min(most, prompts), batch, kv)
            itl = None if seconds is None else seconds / accept
            ttft = self._chunks(min(most, prompts) + shape.computed, batch, kv)
            meets = target.meets(ttft, itl)
            yield from _candidate(batch, None if itl is None else shape.output * itl, meets)

    def _most_decodes(self, shape: Shape) -> int:
        return min(self.limits.max_num_seqs, self.limits.max_kv_tokens // shape.context)


#: Batches: whether one meets the target, and its requests/s, None while the model is not ready.
_Rates = Iterable[tuple[bool, float | None]]


def _candidate(batch: int, seconds: float | None, meets: bool) -> _Rates:
    """One batch of so many requests that takes so many *seconds*; nothing where it takes none."""
    if seconds is None:
        yield False, None
    elif seconds:
        yield meets, batch / seconds


def _decodes(load: Load, scale: float, queued: bool) -> tuple[float, float]:
    """Requests and KV tokens that decode, scaled; with what is *queued*, of prompts too."""
    requests, kv = float(load.decode_requests), float(load.decode_kv)
    if queued:
        requests += load.queued_decode_requests + load.queued_prefill_requests
        kv += load.queued_decode_kv + load.queued_prefill_tokens
    return requests * scale, kv * scale


def _sizes(most: int) -> list[int]:
    """Batch sizes to try: all, or 128 of them at even steps."""
    if most <= _CANDIDATES:
        return list(range(1, most + 1))
    return [1 + index * (most - 1) // (_CANDIDATES - 1) for index in range(_CANDIDATES)]


def _up(value: float) -> int:
    return ceil(value) if value > 0 else 0
