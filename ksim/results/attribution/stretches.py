"""What each request does when: it prefills, decodes, has lost its cache, or computes again what it lost."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from attrs import define, field, frozen

from ksim.flow.events import Admitted
from ksim.results.arrays import Floats, Ints, floats, ints
from ksim.results.history import History

PREFILL, DECODE, PREEMPTED, AGAIN = range(4)


@frozen
class Stint:
    """A request's time in a batch list: from its admission to its last step before it is pushed out, or is done.

    `first` is the row of the step of its first token therein, -1 where it gets none; what it computes before that
    comes from steps up to, but not with, `before`.
    """

    row: int
    admitted: Admitted
    first: int
    before: int
    caught_up: float
    end: float
    again: bool

    @property
    def state(self) -> int:
        """What it does until it has caught up."""
        return AGAIN if self.again else PREFILL


@define(eq=False)
class Stretches:
    """The stints of all completed requests; in between, they are preempted.

    *ends* says when the GPUs are through with each step.  A request that is pushed out still gets the tokens that it
    has in flight, and is preempted once their step has ended.
    """

    history: History
    ends: Floats
    stints: list[Stint] = field(init=False)

    def __attrs_post_init__(self) -> None:
        preempted = defaultdict[int, list[float]](list)
        for event in self.history.requests.preempted:
            preempted[event.request_id].append(event.time)
        admitted = defaultdict[int, list[Admitted]](list)
        for event in self.history.events[Admitted]:
            admitted[event.request_id].append(event)
        requests = self.history.requests
        self.stints = [stint for row in np.flatnonzero(requests.completed).tolist()
                       for stint in self._stints(row, admitted[requests.requests[row].id],
                                                 preempted[requests.requests[row].id])]

    def _stints(self, row: int, admitted: list[Admitted], preempted: list[float]) -> Iterator[Stint]:
        requests, scheduled = self.history.requests, self.history.steps.scheduled
        steps = requests.token_steps[requests.first[row]: requests.first[row + 1]]
        made = scheduled[steps]
        last = float(self.ends[steps[-1]])
        rows = self.history.steps.rows(int(requests.engine[row]))
        for number, event in enumerate(admitted):
            until = preempted[number] if number < len(preempted) else np.inf
            own, others = np.searchsorted(made, (event.time, until)).tolist()
            through = float(self.ends[steps[others - 1]]) if others else 0.0
            end = min(max(min(until, last), through, event.time), last)
            first = int(steps[own]) if own < others else -1
            before = rows.start + int(np.searchsorted(scheduled[rows], until))
            caught_up = min(float(self.ends[first]), end) if first >= 0 else end
            yield Stint(row, event, first, before, caught_up, end, number > 0)

    def table(self) -> tuple[Ints, Ints, Floats, Floats]:
        """Each stretch as columns: the row of its request, what it does, from when, and until when."""
        rows, count = ints(self.stints, "row"), len(self.stints)
        begin, caught_up, end = (floats(self.stints, name) for name in ("admitted.time", "caught_up", "end"))
        again = np.flatnonzero(rows[1:] == rows[:-1])
        states = np.concatenate([ints(self.stints, "state"), np.full(count, DECODE), np.full(len(again), PREEMPTED)])
        begins = np.concatenate([begin, caught_up, end[again]])
        ends = np.concatenate([caught_up, end, begin[again + 1]])
        return np.concatenate([rows, rows, rows[again]]), states, begins, np.maximum(begins, ends)
