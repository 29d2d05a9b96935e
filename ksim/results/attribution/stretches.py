"""The states of each request over time: prefill, decode, preempted, recomputation.

The phases of a split request between its two engines.
"""

from functools import cached_property
from itertools import accumulate

import numpy as np
from attrs import define, frozen

from ksim.flow.events import Admitted
from ksim.flow.log import Columns, only
from ksim.results.history import History
from ksim.results.splits import Splits
from ksim.results.steps import Bools, Floats, Ints, offsets

PREFILL, DECODE, PREEMPTED, AGAIN = range(4)


@frozen(eq=False)
class Stints:
    """The times of requests among the running ones: columns of (stints,), request by request.

    A stint lasts from an admission by the engine at the place `engine`, with `known` tokens of which `cached` were
    found, to the request's last step before it is preempted or done.  `begin` is the row of its engine's first step in
    it.  `first` is the row of the step of its first token, -1 without one.  What the stint computes before that comes
    from steps before `before`.

    The stints of a split request on its prefill engine have `leg` 0, all other stints 1.  With a stint on the prefill
    engine `ahead`, all but one token were loaded: it decodes from the beginning.
    """

    row: Ints
    leg: Ints
    engine: Ints
    admitted: Floats
    cached: Ints
    known: Ints
    begin: Ints
    first: Ints
    before: Ints
    caught_up: Floats
    end: Floats
    again: Bools
    ahead: Bools

    def __len__(self) -> int:
        return len(self.row)

    @property
    def state(self) -> Ints:
        """The state of each stint until it has caught up."""
        loaded = self.ahead & (self.known - self.cached <= 1)
        return np.where(self.again, AGAIN, np.where(loaded, DECODE, PREFILL))


@frozen(eq=False)
class PromptChunks:
    """Prompt chunks of stints: `step` computed `new` tokens after `context` ones, for the row `stint` of `Stints`."""

    stint: Ints
    step: Ints
    new: Ints
    context: Ints


@define(eq=False, slots=False)
class Stretches:
    """The stints of all completed requests; in between, they are preempted.

    *ends* says when the GPUs finish each step.  A preempted request still gets its tokens in flight, and counts as
    preempted when their step has ended.
    """

    history: History
    ends: Floats

    @cached_property
    def stints(self) -> Stints:
        """The stints in the order of their requests."""
        requests, (row, leg, events) = self.history.requests, self._admissions()
        admitted, engine = events["time"], self.history.steps.places(events["engine"])
        number = _numbered(2 * row + leg)
        begin, until = self._first_step(engine, admitted), self._preempted(2 * row + leg, number)
        # Preempted after its last token was scheduled, one is not admitted again; other sequences of it may go on.
        until[np.append(row[1:] != row[:-1], True) & (leg == 1)] = np.inf
        before = self._first_step(engine, until)
        own, others = requests.runs.place(row, begin), requests.runs.place(row, before)
        steps = requests.token_steps
        last, some = self.ends[steps[requests.first[row + 1] - 1]], own < others
        first = np.where(some, steps[np.minimum(own, len(steps) - 1)], -1)
        through = np.where(others > requests.first[row], self.ends[steps[others - 1]], 0.0)
        if len(self.history.splits):
            last, first, through = self._on_prefill_engines(row, leg, begin, before, (last, first, through))
        end = np.minimum(np.maximum(np.maximum(np.minimum(until, last), through), admitted), last)
        caught_up = np.where(first >= 0, np.minimum(self.ends[first], end), end)
        return Stints(
            row=row, leg=leg, engine=engine, admitted=admitted, cached=events["cached"], known=events["known"],
            begin=begin, first=first, before=before, caught_up=caught_up, end=end, again=number > 0,
            ahead=np.append(False, row[1:] == row[:-1]) & (leg == 1) & (number == 0))

    def _on_prefill_engines(self, row: Ints, leg: Ints, begin: Ints, before: Ints, ends: tuple[Floats, Ints, Floats],
                            ) -> tuple[Floats, Ints, Floats]:
        """The same *ends* of stints, but that those of leg 0 end with the step of the last prompt token."""
        splits, (last, first, through) = self.history.splits, ends
        mine = np.flatnonzero(leg == 0)
        place = np.searchsorted(splits.row, row[mine])
        step, until = splits.last_prefill[place], np.fmin(splits.prefilled, splits.admitted)[place]
        reached = (begin[mine] <= step) & (step < before[mine])
        last[mine] = np.where(np.isnan(until), np.fmax(splits.queued[place], 0.0), until)
        first[mine], through[mine] = np.where(reached, step, -1), np.where(reached, until, 0.0)
        return last, first, through

    def _admissions(self) -> tuple[Ints, Ints, Columns]:
        """Admissions of completed requests: row of the request, which leg of it, columns of the events.

        Leg 0 comes first, though a decode engine may begin before the other one: it may compute the prompt by itself.
        """
        requests, events = self.history.requests, self.history.events[Admitted]
        rows = requests.rows(events["request_id"])
        legs = self._legs(rows, events)
        order = np.argsort(2 * rows + legs, kind="stable")
        order = order[requests.completed[rows[order]]]
        return rows[order], legs[order], only(events, order)

    def _legs(self, rows: Ints, events: Columns) -> Ints:
        """0 for events of the requests at *rows* on the engine that prefills them for another one, else 1."""
        source = self.history.requests.prefill_engine[rows]
        return np.where(source == self.history.steps.places(events["engine"]), 0, 1)

    def _preempted(self, key: Ints, number: Ints) -> Floats:
        """When requests were preempted for the *number*-th time, from 0; inf where they were not.

        The *key* is twice the row of the request plus the leg.
        """
        requests = self.history.requests
        rows = requests.rows(requests.preempted["request_id"])
        keys = 2 * rows + self._legs(rows, requests.preempted)
        order = np.argsort(keys, kind="stable")
        first, times = offsets(np.bincount(keys, minlength=2 * len(requests))), requests.preempted["time"][order]
        place = first[key] + number
        return np.where(place < first[key + 1], np.append(times, np.inf)[np.minimum(place, len(times))], np.inf)

    def _first_step(self, engine: Ints, times: Floats) -> Ints:
        """The row of the first step that an engine scheduled at or after each of these times."""
        steps, found = self.history.steps, np.zeros(len(times), np.int64)
        for place in range(len(self.history.engines)):
            rows, which = steps.rows(place), engine == place
            found[which] = rows.start + np.searchsorted(steps.scheduled[rows], times[which])
        return found

    @cached_property
    def prompt_chunks(self) -> PromptChunks:
        """The chunks that stints compute, step by step; a chunk belongs to the latest admission of its request."""
        steps, stints = self.history.steps, self.stints
        step, scale = steps.chunk_step, len(steps) + 1
        rows, known = self.history.requests.find(steps.chunk_request)
        source = np.append(self.history.requests.prefill_engine, -1)[rows]
        keys = 2 * rows + np.where(source == steps.engine[step], 0, 1)
        own = 2 * stints.row + stints.leg
        stint = np.searchsorted(own * scale + stints.begin, keys * scale + step, side="right") - 1
        known &= stint >= 0
        known[known] = own[stint[known]] == keys[known]
        return PromptChunks(stint[known], step[known], steps.chunk_tokens[known], steps.chunk_context[known])

    def table(self) -> tuple[Ints, Ints, Ints, Floats, Floats]:
        """Stretches as columns: the row of the request, the place of its engine, its state, beginning and end."""
        stints = self.stints
        rows, begin, caught_up, end = stints.row, stints.admitted, stints.caught_up, stints.end
        again = np.flatnonzero((rows[1:] == rows[:-1]) & (stints.leg[1:] == stints.leg[:-1]))
        states = np.concatenate([stints.state, np.full(len(stints), DECODE), np.full(len(again), PREEMPTED)])
        begins = np.concatenate([begin, caught_up, end[again]])
        ends = np.maximum(begins, np.concatenate([caught_up, end, begin[again + 1]]))
        engines = np.concatenate([stints.engine, stints.engine, stints.engine[again]])
        return np.concatenate([rows, rows, rows[again]]), engines, states, begins, ends


def _numbered(rows: Ints) -> Ints:
    """The number of equal values before each of *rows*, which are sorted."""
    return np.arange(len(rows)) - np.searchsorted(rows, rows)


UPDATE, DELIVERY = "update", "delivery"
HOP, ROOM, TRANSFER, CONTENTION, NEXT_STEP = "hop", "room", "transfer", "contention", "next_step"
#: The phases that only split requests have, and the group in which each is shown.
HANDOVER = {HOP: "hop", ROOM: "wait for room", TRANSFER: "KV transfer", CONTENTION: "KV contention",
            NEXT_STEP: "next step"}
#: What follows the last prompt token: the prefill engine's host takes in and delivers its answer, and then those.
PHASES = (UPDATE, DELIVERY, *HANDOVER)


def moments(splits: Splits) -> tuple[Ints, Floats]:
    """The rows of completed requests that two engines ran, and when each of `PHASES` began and the last one ended.

    A phase begins when the one before it ends.  Where a connector moves KV behind the prefill, much of the hand-over is
    over by then: a phase that ended before the one ahead of it takes no time.  The decode engine's first admission is
    the end of all.
    """
    requests = splits.requests
    which = requests.completed[splits.row] & ~np.isnan(splits.admitted)
    taken = np.append(requests.steps.taken, np.nan)[splits.last_prefill]
    begin = np.where(splits.handed, requests.first_token[splits.row], splits.prefilled)
    begin = np.where(np.isnan(begin), splits.queued, begin)
    taken, answered = (np.where(splits.awaited, times, np.nan) for times in (taken, splits.answered))
    ends = [begin, taken, answered, splits.queued, np.where(np.isnan(splits.loaded), splits.admitted, splits.allocated)]
    reached = np.stack([np.minimum(end, splits.admitted) for end in accumulate(ends, np.fmax)], axis=1)[which]
    return splits.row[which], np.concatenate([reached, _transfers(splits, reached[:, -1:], which)], axis=1)


def _transfers(splits: Splits, begin: Floats, which: Bools) -> Floats:
    """When what is left of each transfer from *begin* on could have ended, did end, and the decode engine went on."""
    began, loaded, alone, admitted = (column[which, None] for column in (
        splits.began, splits.loaded, splits.alone, splits.admitted))
    end = np.fmax(begin, np.fmin(loaded, admitted))
    return np.concatenate([np.fmin(np.fmax(begin, began) + alone, end), end, admitted], axis=1)
