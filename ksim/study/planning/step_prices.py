"""The requests of a load, and what steps take that compute them: the input of an estimate."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from attrs import evolve, frozen

from ksim.flow.batch import Batch
from ksim.results.steps import Floats, Ints
from ksim.scenario.defaults import Deployment
from ksim.study.speculation import verified

__all__ = ["PROMPTS", "LoadSample", "StepPrices"]

#: Sequences that decode, and prompt tokens, of the steps that are priced; others lie between them.
_DECODES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_MIXED = (0, 1, 16, 64, 128, 256, 512, 1024)
PROMPTS = (128, 512, 1024, 2048, 4096, 8192, 16384)
_DECODES_AT, _MIXED_AT, _PROMPTS_AT = (np.array(grid, dtype=np.float64) for grid in (_DECODES, _MIXED, PROMPTS))


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

    @property
    def context(self) -> int:
        """Tokens that a sequence has in the cache while it decodes, on the mean over time."""
        steps = np.maximum(self.outputs - 1, 1e-9)
        return max(1, round(float((steps * (self.prompts + self.outputs / 2)).sum() / steps.sum())))

    @property
    def held(self) -> float:
        """Tokens for which a request holds blocks, on the mean over the time that it decodes; prefixes are shared."""
        return max(1.0, self.context - float(self.cached.mean()))

    @cached_property
    def batches(self) -> list[Batch]:
        """The steps that are priced: those that only decode, then those with prompts, by their tokens."""
        return [*(self._batch(count, 0) for count in _DECODES),
                *(self._batch(count, tokens) for tokens in PROMPTS for count in _MIXED)]

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
    """What the steps of a deployment's engines take: seconds of the GPUs, of launches, and joules of one GPU.

    Values lie linearly between the steps that were priced: `alone` those that only decode (deployments x 3 x steps),
    and `beside` those that compute prompts, by tokens of prompts and by sequences that decode beside them.  Those of
    one deployment hold for each row of numbers that is asked for; of several, each row has its own.
    """

    alone: Floats
    beside: Floats

    @classmethod
    def of(cls, deployment: Deployment, load: LoadSample) -> "StepPrices":
        """Price some steps of *deployment* for sequences as long as those of *load*; raises KsimError."""
        config, batches = deployment.serve.speculative_config, load.batches
        if config is not None:
            batches = [verified(batch, config) for batch in batches]
        stages = [timer.summarize(batches) for timer in deployment.timers()]
        table = np.array([[[step.seconds, step.launch_seconds, step.joules] for step in stage] for stage in stages])
        values, alone = table.sum(axis=0).T, len(_DECODES)
        return cls(values[None, :, :alone], values[None, :, alone:].reshape(1, 3, len(PROMPTS), len(_MIXED)))

    @classmethod
    def joined(cls, parts: Sequence["StepPrices"], counts: Sequence[int]) -> "StepPrices":
        """So many rows (*counts*) of each of *parts*, one after the other."""
        return cls(*(np.concatenate([np.broadcast_to(table, (count, *table.shape[1:])) if len(table) == 1 else table
                                     for table, count in zip(tables, counts, strict=True)])
                     for tables in ([part.alone for part in parts], [part.beside for part in parts])))

    def rows(self, which: Ints) -> "StepPrices":
        """The rows of these numbers, of which some may come several times."""
        return self if len(self.alone) == 1 else StepPrices(self.alone[which], self.beside[which])

    def at(self, decodes: Floats, prompts: Floats) -> tuple[Floats, Floats]:
        """Seconds of the GPUs and of the launch, for so many *decodes* in a row and numbers of *prompts*."""
        seconds, launch = _interpolated(self.alone[:, :2], self.beside[:, :2], decodes, prompts)
        return seconds, launch

    def joules(self, decodes: Floats, prompts: Floats) -> Floats:
        """The joules of one GPU, in the same way."""
        return np.asarray(_interpolated(self.alone[:, 2:], self.beside[:, 2:], decodes, prompts)[0])


def _interpolated(alone: Floats, beside: Floats, decodes: Floats, prompts: Floats) -> Sequence[Floats]:
    """Each table of `StepPrices` at numbers of *decodes*, and of *prompts*, one or several a row.

    With prompts, there is one number of decodes a row.
    """
    count, (row, up) = alone.shape[1], _between(_DECODES_AT, decodes.reshape(-1))
    tables = np.repeat(np.arange(len(decodes)) % len(alone), decodes.size // max(1, len(decodes)))
    up = up[:, None]
    plain = (alone[tables, :, row] * (1 - up) + alone[tables, :, row + 1] * up).T.reshape(count, *decodes.shape)
    if not np.any(prompts):
        return [*np.broadcast_to(plain, (count, *np.broadcast_shapes(decodes.shape, prompts.shape)))]
    row, up = _between(_MIXED_AT, decodes.reshape(-1))
    up = up[:, None, None]
    table = beside[tables, :, :, row] * (1 - up) + beside[tables, :, :, row + 1] * up
    column, right = _between(_PROMPTS_AT, prompts)
    place = column + (np.arange(len(row)) * len(PROMPTS)).reshape(decodes.shape)
    flat = [table[:, number].ravel() for number in range(count)]
    return [np.where(prompts > 0, one.take(place) * (1 - right) + one.take(place + 1) * right, without)
            for one, without in zip(flat, plain, strict=True)]


def _between(grid: Floats, values: Floats) -> tuple[Ints, Floats]:
    place = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    return place, np.maximum(0.0, (values - grid[place]) / (grid[place + 1] - grid[place]))
