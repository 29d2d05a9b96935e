"""Whose a run's joules are: each request's share of its steps, and what GPUs drew while there was no step."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from attrs import define

from ksim.results.arrays import Bools, Floats, Ints, Places, shares, sums
from ksim.results.attribution.shares import KEYS, PAIRS, TOKENS, Part, Shares, sizes
from ksim.results.history import History
from ksim.results.kernels import joules_of


@define(eq=False, slots=False)
class Energy:
    """The joules of steps, dynamic and static, by what they are shared by; and what each request has of them.

    Dynamic joules are those of the step's kernels, static ones the GPUs' power from the end of the step ahead, or this
    one's start, to its end, split over kernels by the time that they take.  Both are shared as time is (`Shares`).
    """

    shares: Shares

    @property
    def history(self) -> History:
        return self.shares.history

    @property
    def static(self) -> Floats:
        """The static joules of each step."""
        return self.history.steps.static

    @cached_property
    def joules(self) -> Floats:
        """The joules of each step by what they are shared by: tokens, pairs, keys; (steps, 3)."""
        seconds = self.shares.seconds
        _, dynamic = joules_of(self.history, self.shares.occurrences, Part.of)
        whole = seconds.sum(axis=1)
        parts = dynamic + seconds * shares(self.static, whole)[:, None]
        found = np.zeros((len(self.static), 3))
        for by, column in zip(self.shares.by.tolist(), parts.T, strict=True):
            found[:, by] += column
        found[:, TOKENS] += np.where(whole > 0, 0.0, self.static)
        return found

    @cached_property
    def prefill(self) -> float:
        """What sequences with several new tokens have of all that."""
        chunks, totals = self.shares.chunks, self.shares.totals
        return float((self.joules * shares(chunks.astype(np.float64), totals)).sum())

    @property
    def decode(self) -> float:
        """What sequences with one new token have."""
        return float(self.joules.sum()) - self.prefill

    @property
    def idle(self) -> float:
        """What GPUs drew while there was no step."""
        return self.history.static_joules - float(self.static.sum())

    @property
    def unattributed(self) -> float:
        """What no completed request has of the steps: those that did not complete have it."""
        return float(self.joules.sum()) - float(np.nansum(self.requests))

    @cached_property
    def requests(self) -> Floats:
        """What each request has up to the step of its first token, and after it: (requests, 2); nan for those that did
        not complete."""
        requests, pieces, known = self.history.requests, self.shares.pieces, self._known
        prompts, decodes = sizes(pieces.new, pieces.context), (known > 0, known, known)
        rates = self._rates(prompts, decodes)
        rows = self.shares.stretches.stints.row[pieces.stint]
        amounts = np.asarray(sum(rate[pieces.step] * size for rate, size in zip(rates, prompts, strict=True)))
        after = pieces.step > requests.token_steps[requests.first[rows]]
        found = np.stack([sums(rows, amounts * which, len(requests)) for which in (~after, after)], axis=1)
        steps, some = requests.token_steps, requests.output > 0
        amounts = (rates[PAIRS] + rates[KEYS])[steps]
        amounts *= known
        amounts += rates[TOKENS][steps] * decodes[TOKENS]
        if some.any():
            first = requests.first[:-1][some]
            found[some, 0] += amounts[first]
            found[some, 1] += np.add.reduceat(amounts, first) - amounts[first]
        return np.where(requests.completed[:, None], found, np.nan)

    def _rates(self, prompts: Sequence[Ints], decodes: Sequence[Places | Bools]) -> list[Floats]:
        """Joules for each token, pair and key of each step, of which pieces of *prompts* and *decodes* have so many."""
        steps, pieces, count = self.history.requests.token_steps, self.shares.pieces.step, len(self.joules)
        # No more than there is, should pieces have been taken for another request's.
        known = [sums(pieces, prompt, count) + sums(steps, decode, count)
                 for prompt, decode in zip(prompts, decodes, strict=True)]
        return [shares(self.joules[:, by], np.maximum(self.shares.totals[:, by], known[by]))
                for by in (TOKENS, PAIRS, KEYS)]

    @cached_property
    def _known(self) -> Places:
        """Of each token of a completed request that came from a step of one token: how many its sequence had, with the
        one that it came from.  All but those with which a request had caught up do; these are 0, as are others'."""
        requests, stints = self.history.requests, self.shares.stretches.stints
        ahead = (requests.prompt - requests.first[:-1]).astype(np.int32)
        known = np.repeat(ahead, requests.output) + np.arange(len(requests.tokens), dtype=np.int32)
        known *= np.repeat(requests.completed, requests.output)
        caught_up = stints.first >= 0
        known[requests.runs.place(stints.row[caught_up], stints.first[caught_up])] = 0
        return np.asarray(known, np.int32)
