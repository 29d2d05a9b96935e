"""What is in a trace, in one pass over its requests."""

from collections import Counter
from collections.abc import Iterable

import attrs
from attrs import frozen

from ksim.flow.request import Request
from ksim.workload.ledger import Ledger
from ksim.workload.row import follows
from ksim.workload.sharing import PrefixTree, Sharing
from ksim.workload.tally import Summary, Tally
from ksim.workload.timing import ArrivalSummary, Clock


@frozen
class TraceStatistics:
    """Arrivals, lengths in tokens, shared prefixes and sessions of a trace.

    Turns that only follow others of their session have no arrival of their
    own.  `turns` are per session, None without sessions; `ledger` is the
    account of the trace's rows.
    """

    requests: int
    arrivals: ArrivalSummary
    prompt: Summary
    output: Summary
    total: Summary
    sharing: Sharing
    turns: Summary | None
    ledger: Ledger

    @property
    def hit_share(self) -> float:
        """The share of prompt tokens that a cache without limit would hold already."""
        return self.sharing.hit_tokens / self.prompt.total

    def table(self) -> dict[str, dict[str, float]]:
        """Return the numbers by group and name, for a report; groups that do not apply are left out."""
        table = {"arrivals": self.arrivals.row(), "prompt": self.prompt.row(), "output": self.output.row(),
                 "total": self.total.row()}
        if self.sharing.chunks:
            table["sharing"] = {"hit_share": self.hit_share} | attrs.asdict(self.sharing)
        if self.turns:
            table["turns"] = {"sessions": self.turns.count} | self.turns.row()
        return table | {"ledger": dict(self.ledger.counts())}


def measure(requests: Iterable[Request], ledger: Ledger | None = None) -> TraceStatistics:
    """Take the statistics of *requests*, in order of arrival, and the *ledger* that fills up with them.

    Raises ValueError where there is no request.
    """
    prompts, outputs, totals = Tally(), Tally(), Tally()
    clock, tree, sessions = Clock(), PrefixTree(), Counter[str]()
    previous = None
    for request in requests:
        if not follows(request, previous):
            clock.add(request.arrival)
        prompts.add(request.prompt)
        outputs.add(request.output)
        totals.add(request.prompt + request.output)
        tree.add(request)
        sessions[request.session] += 1
        previous = request
    if previous is None:
        raise ValueError("there is no request to measure")
    count = sessions.total()
    del sessions[""]
    turns = Tally(Counter(sessions.values())).summary() if sessions else None
    return TraceStatistics(
        count, clock.summary(), prompts.summary(), outputs.summary(), totals.summary(), tree.sharing(), turns,
        Ledger() if ledger is None else ledger)
