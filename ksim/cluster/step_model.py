"""How long an engine's steps take, from few of them that its timers have priced: what an operator measures offline."""

from collections.abc import Sequence
from math import exp2, log2
from typing import Any

from attrs import define, field, frozen

from ksim.flow.batch import Batch, Contexts, Offsets
from ksim.specs.host import Host

__all__ = ["StepModel", "models_of"]

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
        """What one of so many sequences that decode adds to a step, with *context* tokens in the cache."""
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
    """What decides how long steps take; engines of a kind are equal in it."""
    parts = [(id(timer.model), id(timer.gpu), timer.shard) for timer in engine.timers if hasattr(timer, "gpu")]
    return (*parts, id(engine.host), engine.scheduler.limits) if len(parts) == len(engine.timers) else engine.number


def _rounded(count: int, steps: int) -> int:
    """*count*, or a number near it of which there are so many (*steps*) an octave."""
    return count if count <= steps else round(exp2(round(log2(count) * steps) / steps))


def _batch(size: int, before: int, width: int, cached: int) -> Batch:
    chunks = [(size, before)] if size else []
    return Batch(Contexts(Offsets([cached] * width)), chunks, width + len(chunks), size + width,
                 [(-1, *chunk) for chunk in chunks])
