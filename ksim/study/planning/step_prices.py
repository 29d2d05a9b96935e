"""The requests of a load, and what steps take that compute them: the input of an estimate."""

from functools import cached_property
from itertools import islice

import numpy as np
from attrs import frozen

from ksim.cost.energy import Clock, Setting
from ksim.cost.step import Passes
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST
from ksim.results.steps import Floats, Ints
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.study.capacity.traffic import Traffic
from ksim.study.capacity.trial import Criteria
from ksim.study.experiment import warmed
from ksim.workload.statistics import Reuse

__all__ = ["PROMPTS", "LoadSample", "StepPrices"]

#: Requests that tell the lengths, and the tokens of a block of shared prefixes.
_SAMPLE, _BLOCK = 2000, 16
#: Sequences that decode, and prompt tokens, of the steps that are priced; others lie between them.
_DECODES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_MIXED = (0, 1, 16, 64, 128, 256, 512, 1024)
PROMPTS = (128, 512, 1024, 2048, 4096, 8192, 16384)
_DECODES_AT, _MIXED_AT = (np.array(grid, dtype=np.float64) for grid in (_DECODES, _MIXED))


@frozen(eq=False)
class LoadSample:
    """What the requests of a question have in common: of some of them, prompt tokens, those of them that a prefix cache
    holds already, and output tokens."""

    prompts: Floats
    cached: Floats
    outputs: Floats

    @classmethod
    def of(cls, scenario: Scenario, criteria: Criteria) -> "LoadSample":
        """Of the first requests of *scenario*'s first replication; prefixes are those that a full cache holds."""
        traffic = Traffic.of(scenario.workload, max(criteria.count, _SAMPLE))
        drawn = [*islice(traffic.requests(1.0, criteria.seed), _SAMPLE)]
        prompts = np.array([request.prompt for request in drawn], dtype=np.float64)
        cached = np.zeros_like(prompts)
        if any(request.chunks for request in drawn) and scenario.serve.enable_prefix_caching is not False:
            reuses = Reuse.of(drawn, _BLOCK).reuses()
            held = np.bincount(reuses.by, reuses.blocks * _BLOCK - reuses.missing, minlength=len(drawn))
            cached = np.minimum(held, prompts - 1)
        return cls(prompts, cached, np.array([request.output for request in drawn], dtype=np.float64))

    @cached_property
    def new(self) -> Floats:
        """Prompt tokens that have to be computed."""
        return self.prompts - self.cached

    @property
    def steps(self) -> float:
        """Steps in which a request decodes, on the mean."""
        return float(self.outputs.mean()) - 1

    @cached_property
    def alike(self) -> float:
        """How alike requests are in their outputs: the shorter of two on the mean over the mean of one."""
        steps = np.sort(self.outputs)[::-1]
        weights = 2 * np.arange(len(steps)) + 1
        return float((steps * weights).sum() / weights.sum() / max(steps.mean(), 1e-12))

    @property
    def context(self) -> int:
        """Tokens that a sequence has in the cache while it decodes, on the mean over time."""
        steps = np.maximum(self.outputs - 1, 1e-9)
        return max(1, round(float((steps * (self.prompts + self.outputs / 2)).sum() / steps.sum())))

    @property
    def held(self) -> float:
        """Tokens for which a request holds blocks, on the mean over the time that it decodes; prefixes are shared."""
        return max(1.0, self.context - float(self.cached.mean()))


@frozen(eq=False)
class StepPrices:
    """What the steps of a deployment's engines take: seconds of the GPUs at the clocks that their power limit leaves
    them, seconds of launches, and joules of one GPU.

    Values lie linearly between the steps that were priced: `alone` those that only decode, a row for each of the three,
    and `beside` those that compute prompts, by tokens of prompts (`columns`) and by sequences that decode beside them.
    `padded` has the sequences of the CUDA graph that holds so many decodes.  Where steps of up to `largest` tokens
    replay a graph, two of the columns are of so many tokens with the decodes, and of one more.
    """

    alone: Floats
    beside: Floats
    columns: Floats
    padded: Floats
    largest: int

    @classmethod
    def of(cls, deployment: Deployment, load: LoadSample) -> "StepPrices":
        """Price some steps of *deployment* for sequences as long as those of *load*; raises KsimError."""
        timers = warmed(deployment).timers()
        first = timers[0].main if isinstance(timers[0], Passes) else timers[0]
        padded = [first.graphs.padded(count) or count for count in range(_DECODES[-1] + 1)]
        largest = max((*first.graphs.piecewise, *first.graphs.mixed), default=0)
        columns = sorted({*PROMPTS, *([largest, largest + 1] if 0 < largest < PROMPTS[-1] else [])})
        cut = _Steps(load)
        alone = [cut.batch(count, 0) for count in _DECODES]
        beside = [cut.batch(count, max(1, tokens - count) if tokens - largest in (0, 1) else tokens)
                  for tokens in columns for count in _MIXED]
        stages = [timer.summarize([*alone, *beside]) for timer in timers]
        gpu, power = deployment.gpu.power, deployment.scenario.power
        setting, clocks = Setting(power.cap, power.clock), gpu.clocks
        paces = [[Clock(gpu, clocks).pace(step, 0.0, setting) if clocks else AT_BOOST for step in stage]
                 for stage in stages]  # a GPU has earned its credit, if it has any, before a step that draws much
        table = np.array([[[step.seconds_at(pace), step.launch_seconds, step.joules_at(pace)]
                           for step, pace in zip(*stage, strict=True)] for stage in zip(stages, paces, strict=True)])
        values = table.sum(axis=0).T
        return cls(values[:, :len(alone)], values[:, len(alone):].reshape(3, len(columns), len(_MIXED)),
                   np.array(columns, dtype=np.float64), np.array(padded, dtype=np.float64), largest)

    def at(self, decodes: Floats, prompts: Floats) -> tuple[Floats, Floats]:
        """Seconds of the GPUs and of the launch, for so many *decodes* in a row and numbers of *prompts*."""
        seconds, launch = self._interpolated(slice(0, 2), decodes, prompts)
        return seconds, launch

    def joules(self, decodes: Floats, prompts: Floats) -> Floats:
        """The joules of one GPU, in the same way."""
        return np.asarray(self._interpolated(slice(2, 3), decodes, prompts)[0])

    def _place(self, decodes: Floats, prompts: Floats) -> Floats:
        """Where *prompts* beside so many *decodes* lie among the columns: what fits into a graph before those that do
        not."""
        place = int(np.searchsorted(self.columns, self.largest + 1, side="right"))
        if self.largest not in self.columns or place == len(self.columns):
            return prompts
        edge, after = np.maximum(1.0, self.largest + 1 - decodes), self.columns[place]
        inside = prompts * self.largest / np.maximum(1.0, self.largest - decodes)
        outside = self.largest + 1 + (prompts - edge) * (after - self.largest - 1) / (after - edge)
        return np.where(prompts + decodes <= self.largest, inside, np.where(prompts < after, outside, prompts))

    def _interpolated(self, which: slice, decodes: Floats, prompts: Floats) -> Floats:
        """Some of the tables at numbers of *decodes*, one a row, and of *prompts*, one or several a row."""
        alone, beside = self.alone[which], self.beside[which]
        last = len(self.padded) - 1
        below = np.minimum(decodes.astype(int), last - 1)
        held = self.padded[below] + np.minimum(decodes - below, 1) * (self.padded[below + 1] - self.padded[below])
        row, up = _between(_DECODES_AT, np.where(decodes < last, held, decodes))
        plain = alone[:, row] * (1 - up) + alone[:, row + 1] * up
        if not np.any(prompts):
            return np.broadcast_to(plain, (len(alone), *np.broadcast_shapes(decodes.shape, prompts.shape)))
        row, up = _between(_MIXED_AT, decodes.reshape(-1))
        table = beside[:, :, row] * (1 - up) + beside[:, :, row + 1] * up
        column, right = _between(self.columns, self._place(decodes, prompts))
        rows = np.arange(len(row)).reshape(decodes.shape)
        values = table[:, column, rows] * (1 - right) + table[:, column + 1, rows] * right
        return np.where(prompts > 0, values, plain)


def _between(grid: Floats, values: Floats) -> tuple[Ints, Floats]:
    place = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    return place, np.maximum(0.0, (values - grid[place]) / (grid[place + 1] - grid[place]))


@frozen
class _Steps:
    """Steps of sequences as long as those of `load`."""

    load: LoadSample

    def batch(self, decodes: int, tokens: int) -> Batch:
        """So many sequences decode beside so many prompt *tokens*: whole prompts, or a chunk in the middle of one."""
        return Batch.of(*[(1, self.load.context)] * decodes, *self._chunks(tokens))

    def _chunks(self, tokens: int) -> list[tuple[int, int]]:
        new, cached = max(2, round(float(self.load.new.mean()))), round(float(self.load.cached.mean()))
        if tokens < new:
            return [(tokens, cached + (new - tokens) // 2)] if tokens else []
        count = round(tokens / new)
        return [(tokens // count + (place < tokens % count), cached) for place in range(count)]
