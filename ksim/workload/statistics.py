"""Statistics of a trace, in one pass over its requests."""

from collections import Counter
from collections.abc import Hashable, Iterable

import attrs
import numpy as np
from attrs import define, field, frozen

from ksim.flow.request import Request
from ksim.workload.arrivals import ArrivalSummary, ArrivalTally
from ksim.workload.rows import Ledger, follows

#: The probabilities of `Summary.quantiles`: every hundredth, and two more in the upper tail.
PROBABILITIES = tuple(sorted({*(percent / 100 for percent in range(101)), 0.995, 0.999}))


@frozen
class Summary:
    """Count, sum, mean and quantiles of whole numbers; quantiles between two numbers are interpolated."""

    count: int
    total: int
    mean: float
    quantiles: tuple[float, ...]

    def at(self, probability: float) -> float:
        """Return the quantile at one of `PROBABILITIES`; raise ValueError for any other."""
        return self.quantiles[PROBABILITIES.index(probability)]

    def row(self) -> dict[str, float]:
        """Return the mean and common quantiles by name."""
        names = {"min": 0.0, "p1": 0.01, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
        return {"mean": self.mean} | {name: self.at(probability) for name, probability in names.items()}


@define
class Tally:
    """Counts the occurrences of each whole number; memory grows with the different numbers only."""

    counts: Counter[int] = field(factory=Counter)

    def add(self, value: int) -> None:
        self.counts[value] += 1

    def summary(self) -> Summary:
        """Summarise the numbers, of which there must be at least one."""
        values = np.array(sorted(self.counts))
        upto = np.cumsum([self.counts[value] for value in values.tolist()])
        total = sum(value * times for value, times in self.counts.items())
        rank = np.array(PROBABILITIES) * (upto[-1] - 1)
        low = values[np.searchsorted(upto, np.floor(rank), side="right")]
        high = values[np.searchsorted(upto, np.ceil(rank), side="right")]
        quantiles = low + (high - low) * (rank - np.floor(rank))
        return Summary(int(upto[-1]), total, total / int(upto[-1]), tuple(quantiles.tolist()))


@frozen
class Sharing:
    """Chunks and prompt tokens that an unlimited prefix cache would hit, and requests with some or only such chunks."""

    chunks: int
    hit_chunks: int
    hit_tokens: int
    requests_with_hit: int
    requests_all_hit: int


@define
class SeenPrefixes:
    """The prefixes of chunks seen so far, each identified by the number of its last chunk.

    Memory grows with the different chunks.
    """

    _numbers: dict[tuple[int, Hashable], int] = field(factory=dict)
    _chunks: int = 0
    _hit_chunks: int = 0
    _hit_tokens: int = 0
    _with_hit: int = 0
    _all_hit: int = 0

    def add(self, request: Request) -> None:
        """Count the chunks of the prompt that are in a known prefix, then add all chunks of the request."""
        in_prompt = min(len(request.chunks), -(-request.prompt // request.chunk_tokens))
        hits = min(self._remember(request), in_prompt)
        self._chunks += in_prompt
        self._hit_chunks += hits
        self._hit_tokens += min(hits * request.chunk_tokens, request.prompt)
        self._with_hit += hits > 0
        self._all_hit += hits * request.chunk_tokens >= request.prompt

    def _remember(self, request: Request) -> int:
        """Add the request's chunks; return how many, from the start on, were known."""
        # Chunks of different sizes are different, even if their names are equal.
        place, known = -request.chunk_tokens, 0
        for depth, chunk in enumerate(request.chunks):
            following = self._numbers.get((place, chunk))
            if following is None:
                following = self._numbers[place, chunk] = len(self._numbers)
            else:
                known = depth + 1
            place = following
        return known

    def sharing(self) -> Sharing:
        return Sharing(self._chunks, self._hit_chunks, self._hit_tokens, self._with_hit, self._all_hit)


@frozen
class TraceStatistics:
    """Arrivals, lengths in tokens, shared prefixes and sessions of a trace.

    A turn that only follows another of its session has no arrival of its own.
    `turns` are those per session, None without sessions; `ledger` has the counts of
    the trace's rows.
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
        """The share of prompt tokens that a prefix cache without limit would hit."""
        return self.sharing.hit_tokens / self.prompt.total

    def table(self) -> dict[str, dict[str, float]]:
        """Return the numbers by group and name, for a report; groups without data are left out."""
        table = {"arrivals": self.arrivals.row(), "prompt": self.prompt.row(), "output": self.output.row(),
                 "total": self.total.row()}
        if self.sharing.chunks:
            table["sharing"] = {"hit_share": self.hit_share} | attrs.asdict(self.sharing)
        if self.turns:
            table["turns"] = {"sessions": self.turns.count} | self.turns.row()
        return table | {"ledger": dict(self.ledger.counts())}


def measure(requests: Iterable[Request], ledger: Ledger | None = None) -> TraceStatistics:
    """Measure *requests*, in order of arrival; *ledger* is the one that fills while they are read.

    Raises ValueError if there is no request.
    """
    prompts, outputs, totals = Tally(), Tally(), Tally()
    arrivals, prefixes, sessions = ArrivalTally(), SeenPrefixes(), Counter[str]()
    previous = None
    for request in requests:
        if not follows(request, previous):
            arrivals.add(request.arrival)
        prompts.add(request.prompt)
        outputs.add(request.output)
        totals.add(request.prompt + request.output)
        prefixes.add(request)
        sessions[request.session] += 1
        previous = request
    if previous is None:
        raise ValueError("there is no request to measure")
    count = sessions.total()
    del sessions[""]
    turns = Tally(Counter(sessions.values())).summary() if sessions else None
    return TraceStatistics(
        requests=count, arrivals=arrivals.summary(), prompt=prompts.summary(), output=outputs.summary(),
        total=totals.summary(), sharing=prefixes.sharing(), turns=turns,
        ledger=Ledger() if ledger is None else ledger)
