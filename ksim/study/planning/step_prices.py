"""The requests of a load, and what steps take that compute them: the input of an estimate."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from attrs import evolve, field, frozen

from ksim.cost.energy import Clock, Setting
from ksim.cost.step import Passes, StepTimer
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST
from ksim.results.steps import Floats, Ints
from ksim.scenario.defaults import Deployment
from ksim.study.experiment import warmed
from ksim.study.speculation import verified

__all__ = ["PROMPTS", "LoadSample", "StepPrices"]

#: Sequences that decode, and prompt tokens, of the steps that are priced; others lie between them.
_DECODES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_MIXED = (0, 1, 16, 64, 128, 256, 512, 1024)
PROMPTS = (128, 512, 1024, 2048, 4096, 8192, 16384)
_DECODES_AT, _MIXED_AT = (np.array(grid, dtype=np.float64) for grid in (_DECODES, _MIXED))


@frozen(eq=False)
class LoadSample:
    """What the requests of a question have in common: of some of them, prompt tokens, those of them that a prefix cache
    holds already, and output tokens.

    A step gives a sequence so many tokens on the mean (`accepted`): more than one where it verifies drafts.  Their
    standard deviation is `uneven` times as much.  A rate counts one of so many requests (`turns`): sessions.  Of the
    `cached` tokens, so many were computed as prompts (`asked`), and not generated.
    """

    prompts: Floats
    cached: Floats
    outputs: Floats
    accepted: float = 1.0
    uneven: float = 0.0
    turns: float = 1.0
    asked: Floats | None = None
    _batches: dict[tuple[int, int], list[Batch]] = field(factory=dict, init=False, repr=False)

    @cached_property
    def new(self) -> Floats:
        """Prompt tokens that have to be computed."""
        return self.prompts - self.cached

    @cached_property
    def prefilled(self) -> "LoadSample":
        """The same for engines that prefill alone: they have no tokens that others generated."""
        return self if self.asked is None else evolve(self, cached=np.minimum(self.cached, self.asked))

    @property
    def steps(self) -> float:
        """Steps in which a request decodes, on the mean."""
        return (float(self.outputs.mean()) - 1) / self.accepted

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

    def batches(self, columns: Sequence[int], largest: int, width: int) -> list[Batch]:
        """The steps that are priced: those that only decode, then those with so many prompt tokens (*columns*); where
        these are the *largest* graph's, or one more, so many with the decodes, each of so many tokens (*width*)."""
        key = largest, width
        if key not in self._batches:
            beside = [(count, max(1, tokens - width * count) if tokens - largest in (0, 1) else tokens)
                      for tokens in columns for count in _MIXED]
            self._batches[key] = [self._batch(*step) for step in (*((count, 0) for count in _DECODES), *beside)]
        return self._batches[key]

    def _batch(self, decodes: int, tokens: int) -> Batch:
        """So many sequences decode beside so many prompt *tokens*: whole prompts, or a chunk in the middle of one."""
        return Batch.of(*[(1, self.context)] * decodes, *self._chunks(tokens))

    def _chunks(self, tokens: int) -> list[tuple[int, int]]:
        new, cached = max(2, round(float(self.new.mean()))), round(float(self.cached.mean()))
        if tokens < new:
            return [(tokens, cached + (new - tokens) // 2)] if tokens else []
        count = round(tokens / new)
        return [(tokens // count + (place < tokens % count), cached) for place in range(count)]


@frozen(eq=False)
class StepPrices:
    """What the steps of a deployment's engines take: seconds of the GPUs at the clocks that their power limit leaves
    them, seconds of launches, and joules of one GPU.

    Values lie linearly between the steps that were priced: `alone` those that only decode (deployments x 3 x steps),
    and `beside` those that compute prompts, by tokens of prompts (`columns`) and by sequences that decode beside them.
    `padded` has the sequences of the CUDA graph that holds so many decodes.  Where steps of up to `largest` tokens
    replay a graph, two of the columns are of so many tokens with the decodes, each of so many (`width`), and of one
    more.  Rows of one deployment hold for each row of numbers that is asked for; of several, each row has its own.
    """

    alone: Floats
    beside: Floats
    columns: Floats
    padded: Floats
    largest: int
    width: int

    @classmethod
    def of(cls, deployment: Deployment, load: LoadSample) -> "StepPrices":
        """Price some steps of *deployment* for sequences as long as those of *load*; raises KsimError."""
        timers = warmed(deployment).timers()
        first = timers[0].main if isinstance(timers[0], Passes) else timers[0]
        largest = max((*first.graphs.piecewise, *first.graphs.mixed), default=0)
        columns = sorted({*PROMPTS, *([largest, largest + 1] if 0 < largest < PROMPTS[-1] else [])})
        width, alone = 1 + deployment.serve.drafted, len(_DECODES)
        batches = load.batches(columns, largest, width)
        if (config := deployment.serve.speculative_config) is not None:
            batches = [verified(batch, config) for batch in batches]
        stages = [timer.summarize(batches) for timer in timers]
        gpu, power = deployment.gpu.power, deployment.scenario.power
        setting, clocks = Setting(power.cap, power.clock), gpu.clocks
        paces = [[Clock(gpu, clocks).pace(step, 0.0, setting) if clocks else AT_BOOST for step in stage]
                 for stage in stages]  # a GPU has earned its credit, if it has any, before a step that draws much
        table = np.array([[[step.seconds_at(pace), step.launch_seconds, step.joules_at(pace)]
                           for step, pace in zip(*stage, strict=True)] for stage in zip(stages, paces, strict=True)])
        values = table.sum(axis=0).T
        return cls(values[None, :, :alone], values[None, :, alone:].reshape(1, 3, len(columns), len(_MIXED)),
                   np.array(columns, dtype=np.float64), _padded(first, width)[None], largest, width)

    @classmethod
    def joined(cls, parts: Sequence["StepPrices"], counts: Sequence[int]) -> "StepPrices":
        """So many rows (*counts*) of each of *parts*, one after the other, which have the same columns."""
        alone, beside, padded = (
            np.concatenate([np.broadcast_to(table, (count, *table.shape[1:])) if len(table) == 1 else table
                            for table, count in zip(tables, counts, strict=True)])
            for tables in zip(*((part.alone, part.beside, part.padded) for part in parts), strict=True))
        return evolve(parts[0], alone=alone, beside=beside, padded=padded)

    def rows(self, which: Ints) -> "StepPrices":
        """The rows of these numbers, of which some may come several times."""
        return self if len(self.alone) == 1 else evolve(
            self, alone=self.alone[which], beside=self.beside[which], padded=self.padded[which])

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
        beside, after = self.width * decodes, self.columns[place]
        edge = np.maximum(1.0, self.largest + 1 - beside)
        inside = prompts * self.largest / np.maximum(1.0, self.largest - beside)
        outside = self.largest + 1 + (prompts - edge) * (after - self.largest - 1) / (after - edge)
        return np.where(prompts + beside <= self.largest, inside, np.where(prompts < after, outside, prompts))

    def _interpolated(self, which: slice, decodes: Floats, prompts: Floats) -> Sequence[Floats]:
        """Some of the tables at numbers of *decodes*, and of *prompts*, one or several a row.

        With prompts, there is one number of decodes a row.
        """
        alone, beside, counts = self.alone[:, which], self.beside[:, which], decodes.reshape(-1)
        tables = np.repeat(np.arange(len(decodes)) % len(alone), decodes.size // max(1, len(decodes)))
        row, up = _between(_DECODES_AT, self._held(tables, counts))
        up = up[:, None]
        plain = alone[tables, :, row] * (1 - up) + alone[tables, :, row + 1] * up
        plain = plain.T.reshape(alone.shape[1], *decodes.shape)
        if not np.any(prompts):
            return [*np.broadcast_to(plain, (len(plain), *np.broadcast_shapes(decodes.shape, prompts.shape)))]
        row, up = _between(_MIXED_AT, counts)
        up = up[:, None, None]
        table = beside[tables, :, :, row] * (1 - up) + beside[tables, :, :, row + 1] * up
        column, right = _between(self.columns, self._place(decodes, prompts))
        place = column + (np.arange(len(row)) * len(self.columns)).reshape(decodes.shape)
        flat = [table[:, number].ravel() for number in range(len(plain))]
        return [np.where(prompts > 0, one.take(place) * (1 - right) + one.take(place + 1) * right, without)
                for one, without in zip(flat, plain, strict=True)]

    def _held(self, tables: Ints, counts: Floats) -> Floats:
        """The sequences of the graphs that hold so many decodes (*counts*), each of one of *tables*."""
        last = self.padded.shape[1] - 1
        below = np.minimum(counts.astype(int), last - 1)
        low, high = self.padded[tables, below], self.padded[tables, below + 1]
        return np.where(counts < last, low + np.minimum(counts - below, 1) * (high - low), counts)


def _padded(timer: StepTimer, width: int) -> Floats:
    """The sequences of the CUDA graph that holds 0, 1, 2, ... of them, each of so many tokens (*width*)."""
    tokens = range(0, width * _DECODES[-1] + 1, width)
    return np.array([timer.graphs.padded(count) or count for count in tokens]) / width


def _between(grid: Floats, values: Floats) -> tuple[Ints, Floats]:
    place = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    return place, np.maximum(0.0, (values - grid[place]) / (grid[place + 1] - grid[place]))
