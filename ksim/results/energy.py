"""The joules of each request, as its share of the energy of its steps, and the numbers of summary.json about energy.

docs/energy.md says how joules are shared.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from attrs import define

from ksim.flow.events import Decoded, EngineBuilt
from ksim.results.activity import KEYS, PAIRS, TOKENS, SharedKernels, Shares, sizes
from ksim.results.history import History
from ksim.results.numbers import Summary
from ksim.results.steps import Bools, Floats, Ints, Places, codes, each, product, ratio, shares, sums

_PERCENTILES = (90, 99)


def _statistics(name: str) -> list[str]:
    return [f"{statistic}_{name}_joules" for statistic in ("mean", "median", *(f"p{q}" for q in _PERCENTILES))]


#: The numbers of `energy_summary`.
ENERGY_KEYS = ("energy_joules_low", "energy_joules_high", "prefill_energy_joules", "decode_energy_joules",
               "idle_energy_joules", "unattributed_energy_joules", *_statistics("energy_to_first_token"),
               *_statistics("energy_per_output_token"), *_statistics("energy_per_request"), "sessions",
               "mean_energy_per_session_joules", "p90_energy_per_session_joules")


@define(eq=False, slots=False)
class Energy:
    """The joules of steps, dynamic and static, by what they are shared by; and the share of each request.

    Dynamic joules are those of the step's kernels.  Static joules are the GPUs' static power up to the end of the
    step, from its start or from the end of the step before it; they are split over kernels by time.  Both are shared
    as time is (`Shares`).  Where data-parallel ranks share experts, the joules that the steps of one round spend on
    experts, and on dummy steps, are shared by all new tokens of the round.
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
        """The joules of each step by what they are shared by (tokens, pairs, keys): (steps, 3)."""
        seconds = self.shares.seconds
        _, dynamic = self.shares.usage.joules_by(SharedKernels.of)
        whole = seconds.sum(axis=1)
        watts, found = shares(self.static, whole), np.zeros((len(self.static), 3))
        pooled = np.zeros(len(self.static))
        for part, joules, times in zip(self.shares.parts, dynamic.T, seconds.T, strict=True):
            into = pooled if part.pooled else found[:, part.by]
            into += joules + times * watts
        found[:, TOKENS] += np.where(whole > 0, 0.0, self.static)
        return self._shared(found, pooled)

    def _shared(self, found: Floats, pooled: Floats) -> Floats:
        """The joules *found*, plus *pooled* ones, which all tokens of a round share equally.

        A dummy step has no tokens, so the tokens of other ranks share all of its joules.  If a round has no tokens,
        as in a run that was cut off, its joules stay with its dummy steps.
        """
        steps, rounds = self.history.steps, self.history.steps.rounds
        if rounds is None:
            found[:, TOKENS] += pooled
            return found
        dummies, count = steps.tokens == 0, int(rounds.max(initial=-1)) + 1
        pooled = pooled + np.where(dummies, found.sum(axis=1), 0.0)
        found[dummies] = 0.0
        tokens = sums(rounds, steps.tokens, count)
        each = shares(sums(rounds, pooled, count), tokens)[rounds]
        found[:, TOKENS] += np.where(tokens[rounds] > 0, each * steps.tokens, pooled)
        return found

    @cached_property
    def prefill(self) -> float:
        """The joules of prompt chunks, recomputation included."""
        chunks, totals = self.shares.chunks, self.shares.totals
        return float((self.joules * shares(chunks.astype(np.float64), totals)).sum())

    @property
    def decode(self) -> float:
        """The joules of decodes."""
        return float(self.joules.sum()) - self.prefill

    @property
    def idle(self) -> float:
        """Static joules while there was no step."""
        return self.history.static_joules - float(self.static.sum())

    @property
    def unattributed(self) -> float:
        """Joules of steps that belong to no completed request."""
        return float(self.joules.sum()) - float(np.nansum(self.requests))

    @cached_property
    def requests(self) -> Floats:
        """Joules of each request up to the step of its first token, and after it: (requests, 2).

        They are nan for requests that did not complete.
        """
        requests, chunks = self.history.requests, self.shares.stretches.prompt_chunks
        prompts = sizes(chunks.new, chunks.context)
        rates = self._rates()
        rows = self.shares.stretches.stints.row[chunks.stint]
        amounts = np.asarray(sum(rate[chunks.step] * size for rate, size in zip(rates, prompts, strict=True)))
        after = self._after_first(chunks.step, rows, self.shares.stretches.stints.leg[chunks.stint])
        joules = np.stack([sums(rows, amounts * which, len(requests)) for which in (~after, after)], axis=1)
        if self.history.steps.drafted:  # of decodes
            rates = [rates[TOKENS] * self.shares.width, rates[PAIRS] * self.shares.width, rates[KEYS]]
        for part in requests.parts():
            joules[part] += self._decoded(part, rates)
        joules += self._decoded_of_several(rates)
        return np.where(requests.completed[:, None], joules, np.nan)

    def _after_first(self, steps: Ints, rows: Ints, leg: Ints) -> Bools:
        """Whether *steps* of the requests at *rows*, on their first or second *leg*, come after their first token."""
        first, engine = self.history.requests.token_steps[self.history.requests.first[rows]], self.history.steps.engine
        return np.where(engine[steps] == engine[first], steps > first, self._handed[rows] & (leg == 1))

    @cached_property
    def _handed(self) -> Bools:
        """Requests whose first token was handed over by their prefill engine."""
        splits, found = self.history.splits, np.zeros(len(self.history.requests), dtype=np.bool_)
        found[splits.row] = splits.handed
        return found

    def _decoded(self, rows: slice, rates: list[Floats]) -> Floats:
        """Joules of the requests at *rows* for tokens of steps that decode: with the first token, and after."""
        requests, found = self.history.requests, np.zeros((rows.stop - rows.start, 2))
        steps, known = self._tokens(rows)
        amounts = (rates[PAIRS] + rates[KEYS])[steps]
        amounts *= known
        amounts += rates[TOKENS][steps] * (known > 0)
        if (some := requests.output[rows] > 0).any():
            first = requests.first[rows][some] - requests.first[rows.start]
            found[some, 0] = amounts[first]
            found[some, 1] = np.add.reduceat(amounts, first) - amounts[first]
        return found

    def _rates(self) -> list[Floats]:
        """Joules per token, pair and key of each step."""
        totals = self.shares.totals
        return [shares(self.joules[:, by], totals[:, by]) for by in (TOKENS, PAIRS, KEYS)]

    def _tokens(self, rows: slice) -> tuple[Places, Ints]:
        """The step of each token of the requests at *rows*, and the length of its sequence then.

        The length counts the token that was computed.  It is 0 for tokens with which a request had just caught up, for
        requests of several sequences, for those that did not complete, as their steps may compute more than one token,
        and for a token from the same step as the one before it, which was handed over by another engine, or drafted.
        """
        requests, caught_up = self.history.requests, self._caught_up
        begin, end = int(requests.first[rows.start]), int(requests.first[rows.stop])
        ahead = requests.prompt[rows] - requests.first[rows]
        known = np.repeat(ahead, requests.output[rows]) + np.arange(begin, end)
        for row, place in zip(*requests.restarts, strict=True):  # tokens before are no part of its sequence
            if rows.start <= row < rows.stop:
                last = requests.first[row + 1]
                known[place - begin:last - begin] = requests.prompt[row] + np.arange(last - place)
        known *= np.repeat(requests.completed[rows], requests.output[rows])
        known[caught_up[slice(*np.searchsorted(caught_up, [begin, end]))] - begin] = 0
        steps = requests.token_steps[begin:end]
        known[np.repeat(self._several[rows], requests.output[rows])] = 0
        if len(self.history.splits) or not requests.runs.single:
            again = np.zeros(len(steps), dtype=np.bool_)
            again[1:] = steps[1:] == steps[:-1]
            again[requests.first[rows][requests.output[rows] > 0] - begin] = False
            known[again] = 0
        return steps, known

    @cached_property
    def _several(self) -> Bools:
        """Requests of several sequences."""
        return each(self.history.requests.requests, lambda request: request.n > 1 or request.beam_width > 0) > 0

    def _decoded_of_several(self, rates: list[Floats]) -> Floats:
        """Joules of requests of several sequences for what these decode, as `requests` has them."""
        requests, events = self.history.requests, self.history.events[Decoded]
        rows = requests.rows(events["request_id"])
        steps = self.history.steps.row(events["engine"], events["step"])
        amounts = (rates[PAIRS] + rates[KEYS])[steps] * events["length"] + rates[TOKENS][steps] * events["sequences"]
        after = steps > requests.token_steps[requests.first[rows]]
        return np.stack([sums(rows, amounts * which, len(requests)) for which in (~after, after)], axis=1)

    @cached_property
    def _caught_up(self) -> Ints:
        """The places of the tokens with which requests caught up."""
        requests, stints = self.history.requests, self.shares.stretches.stints
        which = (stints.first >= 0) & (stints.leg == 1)
        handed = np.flatnonzero(self._handed & requests.completed)
        return np.sort(np.append(stints.token[which], requests.first[handed]))


def energy_summary(spent: Energy) -> Summary:
    """The energy of a run, over completed requests; None for what the run cannot determine."""
    history, requests, steps = spent.history, spent.history.requests, spent.history.steps
    done, (first, after) = requests.completed, spent.requests.T
    several = done & (requests.output > 1)
    return {
        **energy_interval(history.engines, history.static_joules, float(steps.joules.sum()),
                          product(steps.joules, steps.per_engine("reach"))),
        "prefill_energy_joules": spent.prefill,
        "decode_energy_joules": spent.decode,
        "idle_energy_joules": spent.idle,
        "unattributed_energy_joules": spent.unattributed,
        **_spread("energy_to_first_token", first[done]),
        **_spread("energy_per_output_token", shares(after, requests.output - 1)[several]),
        **_spread("energy_per_request", (first + after)[done]),
        **_sessions(spent.history, first + after, done),
    }


def energy_interval(engines: Sequence[EngineBuilt], static: float, dynamic: float, off: float) -> Summary:
    """The 90 % interval of the sum of *static* and *dynamic* joules.

    Dynamic joules are *off* by so much, with all kernels erring together.  Static power is taken to be known.
    """
    known = off > 0 and all(built.reach > 0 for built in engines)
    low, high = (static + dynamic + side * off for side in (-1, 1))
    return {"energy_joules_low": low if known else None, "energy_joules_high": high if known else None}


def _spread(name: str, joules: Floats) -> Summary:
    """Mean, median and percentiles of *joules*."""
    keys = _statistics(name)
    if not len(joules):
        return dict.fromkeys(keys)
    values = [joules.mean(), np.median(joules), *np.percentile(joules, _PERCENTILES)]
    return dict(zip(keys, map(float, values), strict=True))


def _sessions(history: History, joules: Floats, done: Bools) -> Summary:
    """Joules of the completed requests of each session."""
    asked = history.requests.requests
    named = [row for row in np.flatnonzero(done).tolist() if asked[row].session]
    numbers, sessions = codes(asked[row].session for row in named)
    found = sums(numbers, joules[named], len(sessions))
    return {
        "sessions": len(sessions),
        "mean_energy_per_session_joules": ratio(float(found.sum()), len(found)),
        "p90_energy_per_session_joules": float(np.percentile(found, 90)) if len(found) else None,
    }
