"""Tables of quantiles from traces."""

from ksim.workload.lengths import LengthTable
from ksim.workload.statistics import TraceStatistics

#: The probabilities of a table: even steps, with more of them in both tails.
PROBABILITIES = (0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99,
                 0.995, 0.999, 1.0)


def fit(statistics: TraceStatistics, source: str, licence: str, note: str = "") -> LengthTable:
    """Return the table of a trace's quantiles; *source*, *licence* and *note* say where they come from.

    Raises ValueError for a trace without at least two arrivals at different times.
    """
    arrivals = statistics.arrivals
    return LengthTable(
        source=source, licence=licence, note=note, requests=statistics.requests,
        rate=round(arrivals.rate, 4), burstiness=round(arrivals.burstiness, 4), probabilities=PROBABILITIES,
        prompt=tuple(round(statistics.prompt.at(p), 1) for p in PROBABILITIES),
        output=tuple(round(statistics.output.at(p), 1) for p in PROBABILITIES))
