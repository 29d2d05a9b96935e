"""The states of each request over time: prefill, decode, preempted, recomputation."""

from functools import cached_property

import numpy as np
from attrs import define, frozen

from ksim.flow.events import Admitted
from ksim.flow.log import Columns
from ksim.results.arrays import Bools, Floats, Ints, offsets
from ksim.results.history import History

PREFILL, DECODE, PREEMPTED, AGAIN = range(4)


@frozen(eq=False)
class Stints:
    """The times of requests among the running ones: columns of (stints,), request by request.

    A stint lasts from an admission, with `known` tokens of which `cached` were found, to the request's last step
    before it is preempted or done.  `begin` is the row of its engine's first step in it.  `first` is the row of the
    step of its first token, -1 without one.  What the stint computes before that comes from steps before `before`.
    """

    row: Ints
    admitted: Floats
    cached: Ints
    known: Ints
    begin: Ints
    first: Ints
    before: Ints
    caught_up: Floats
    end: Floats
    again: Bools

    def __len__(self) -> int:
        return len(self.row)

    @property
    def state(self) -> Ints:
        """The state of each stint until it has caught up."""
        return np.where(self.again, AGAIN, PREFILL)


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
        requests = self.history.requests
        row, number, events = self._admissions()
        admitted = events["time"]
        begin = self._first_step(requests.engine[row], admitted)
        until = self._preempted(row, number)
        before = self._first_step(requests.engine[row], until)
        own, others = requests.runs.place(row, begin), requests.runs.place(row, before)
        steps = requests.token_steps
        last = self.ends[steps[requests.first[row + 1] - 1]]
        through = np.where(others > requests.first[row], self.ends[steps[others - 1]], 0.0)
        end = np.minimum(np.maximum(np.maximum(np.minimum(until, last), through), admitted), last)
        some = own < others
        first = np.where(some, steps[np.minimum(own, len(steps) - 1)], -1)
        caught_up = np.where(some, np.minimum(self.ends[first], end), end)
        return Stints(
            row=row, admitted=admitted, cached=events["cached"], known=events["known"], begin=begin, first=first,
            before=before, caught_up=caught_up, end=end, again=number > 0)

    def _admissions(self) -> tuple[Ints, Ints, Columns]:
        """Admissions of completed requests: row of the request, number of the admission, columns of the events."""
        requests, events = self.history.requests, self.history.events[Admitted]
        rows = requests.rows(events["request_id"])
        order = np.argsort(rows, kind="stable")
        order = order[requests.completed[rows[order]]]
        return rows[order], _numbered(rows[order]), {name: column[order] for name, column in events.items()}

    def _preempted(self, row: Ints, number: Ints) -> Floats:
        """When the requests at these rows were preempted for the *number*-th time, from 0; inf where they were not."""
        requests = self.history.requests
        rows = requests.rows(requests.preempted["request_id"])
        order = np.argsort(rows, kind="stable")
        first, times = offsets(np.bincount(rows, minlength=len(requests))), requests.preempted["time"][order]
        place = first[row] + number
        return np.where(place < first[row + 1], np.append(times, np.inf)[np.minimum(place, len(times))], np.inf)

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
        stint = np.searchsorted(stints.row * scale + stints.begin, rows * scale + step, side="right") - 1
        known &= stint >= 0
        known[known] = stints.row[stint[known]] == rows[known]
        return PromptChunks(stint[known], step[known], steps.chunk_tokens[known], steps.chunk_context[known])

    def table(self) -> tuple[Ints, Ints, Floats, Floats]:
        """Stretches as columns: the row of the request, its state, beginning and end."""
        stints = self.stints
        rows, begin, caught_up, end = stints.row, stints.admitted, stints.caught_up, stints.end
        again = np.flatnonzero(rows[1:] == rows[:-1])
        states = np.concatenate([stints.state, np.full(len(stints), DECODE), np.full(len(again), PREEMPTED)])
        begins = np.concatenate([begin, caught_up, end[again]])
        ends = np.concatenate([caught_up, end, begin[again + 1]])
        return np.concatenate([rows, rows, rows[again]]), states, begins, np.maximum(begins, ends)


def _numbered(rows: Ints) -> Ints:
    """The number of equal values before each of *rows*, which are sorted."""
    return np.arange(len(rows)) - np.searchsorted(rows, rows)
