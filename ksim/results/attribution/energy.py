"""Whose a run's joules are: each request's share of its steps, and what GPUs drew while there was no step."""

from functools import cached_property

import numpy as np
from attrs import define

from ksim.results.arrays import Floats, Ints, ints, shares, sums
from ksim.results.attribution.prefills import Prefills
from ksim.results.attribution.shares import TOKENS, Part, Shares, sizes
from ksim.results.attribution.stretches import Stretches
from ksim.results.history import History
from ksim.results.kernels import joules_of
from ksim.results.occurrences import Occurrences


@define(eq=False, slots=False)
class Energy:
    """The joules of steps, dynamic and static, by what they are shared by; and what each request has of them.

    Dynamic joules are those of the step's kernels, static ones the GPUs' power from the end of the step ahead, or this
    one's start, to its end, split over kernels by the time that they take.  Both are shared as time is (`Shares`).
    """

    history: History
    occurrences: Occurrences

    @cached_property
    def _shares(self) -> Shares:
        return Shares(self.history, self.occurrences)

    @cached_property
    def static(self) -> Floats:
        """The static joules of each step."""
        steps = self.history.steps
        return (steps.ended - steps.begun) * steps.per_engine("static_watts") * steps.gpus

    @cached_property
    def joules(self) -> Floats:
        """The joules of each step by what they are shared by: tokens, pairs, keys; (steps, 3)."""
        seconds = self._shares.seconds
        _, dynamic = joules_of(self.history, self.occurrences, Part.of)
        whole = seconds.sum(axis=1)
        parts = dynamic + seconds * shares(self.static, whole)[:, None]
        found = np.zeros((len(self.static), 3))
        np.add.at(found.T, self._shares.by, parts.T)
        found[:, TOKENS] += np.where(whole > 0, 0.0, self.static)
        return found

    @cached_property
    def prefill(self) -> float:
        """What sequences with several new tokens have of all that."""
        chunks, totals = self._shares.chunks, self._shares.totals
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
        requests = self.history.requests
        rows, steps, new, context = self._pieces()
        amounts = np.zeros(len(rows))
        for by, size in enumerate(sizes(new, context)):
            # No more than there is, should pieces have been taken for another request's.
            most = np.maximum(self._shares.totals[:, by], sums(steps, size, len(self.joules)))
            amounts += shares(self.joules[:, by], most)[steps] * size
        after = steps > requests.token_steps[requests.first[:-1][rows]]
        found = np.stack([sums(rows, amounts * which, len(requests)) for which in (~after, after)], axis=1)
        return np.where(requests.completed[:, None], found, np.nan)

    def _pieces(self) -> tuple[Ints, Ints, Ints, Ints]:
        """What each step computed for whom: rows of requests and of steps, new tokens, and the context they are on."""
        stints = Stretches(self.history, self.history.steps.ended).stints
        pieces = list(Prefills(self.history.steps).pieces(stints))
        prefills = [ints(pieces, name) for name in ("stint.row", "step", "new", "context")]
        caught_up = ints(stints, "row") * len(self.joules) + ints(stints, "first")
        rows, steps, context = self._decodes(caught_up[ints(stints, "first") >= 0])
        decodes = [rows, steps, np.ones_like(rows), context]
        columns = [np.concatenate(pair) for pair in zip(prefills, decodes, strict=True)]
        return columns[0], columns[1], columns[2], columns[3]

    def _decodes(self, caught_up: Ints) -> tuple[Ints, Ints, Ints]:
        """Tokens of completed requests that came from a step of one token: rows of requests and steps, and contexts.

        All do but those with which a request had *caught_up*: numbers of its row and the step's.
        """
        requests = self.history.requests
        rows = np.repeat(np.arange(len(requests)), requests.output)
        before = np.arange(len(rows)) - requests.first[rows]
        known = ints(requests.requests, "prompt")[rows] + before
        alone = requests.completed[rows] & ~np.isin(rows * len(self.joules) + requests.token_steps, caught_up)
        return rows[alone], requests.token_steps[alone], known[alone] - 1
