"""The summary of a run of which only sums and distributions are kept."""

from collections.abc import Sequence

import numpy as np
from attrs import Factory, define, field

from ksim.flow.events import EngineBuilt
from ksim.results import energy, saturation, uncertainty
from ksim.results.arrays import Bools, floats, ratio
from ksim.results.history import History, static_joules
from ksim.results.metrics import (
    LATENCIES,
    LatencyTargets,
    Summary,
    batches,
    cache,
    clocks,
    counts,
    drawn,
    good,
    throughput,
    utilisation,
)
from ksim.results.streaming.histogram import Histogram
from ksim.results.streaming.peak import Concurrency, Seconds
from ksim.results.totals import Served, Work


@define(eq=False)
class Tally:
    """The totals of the parts of a run so far."""

    limits: LatencyTargets
    duration: float = 0.0
    work: Work | None = None
    served: Served = Factory(Served)
    in_flight: Concurrency = Factory(Concurrency)
    seconds: Seconds = Factory(Seconds)
    latencies: dict[str, Histogram] = field(factory=lambda: {name: Histogram() for name in LATENCIES})
    _flown: float = 0.0

    def add(self, history: History, ended: Bools, stepped: Bools, until: float) -> None:
        """Add the requests that have *ended* and the steps in *stepped*.

        All others that complete will have arrived at *until* or later.
        """
        requests, done = history.requests, history.requests.completed & ended
        self.duration = max(self.duration, history.duration)
        self.work = Work.of(history, stepped) + self.work if self.work else Work.of(history, stepped)
        self.served += Served.of(history, ended, good(history, self.limits))
        self.in_flight.add(requests, done, until)
        self.seconds.add(requests, done)
        self._flown += float(requests.e2e[done].sum())
        found = {"ttft": requests.ttft[done], "tpot": requests.tpot[done & (requests.output > 1)],
                 "itl": requests.gaps_of(done), "e2el": requests.e2e[done], "queue": requests.queue[done]}
        for name, values in found.items():
            self.latencies[name].add(values)

    def summary(self, engines: Sequence[EngineBuilt]) -> Summary:
        """The numbers of summary.json; None for those that need more than sums."""
        work, duration = self.work, self.duration
        assert work is not None, "a run ends with an entry of the rest of it"
        last = np.maximum(0.0, duration - work.ended - floats(engines, "sleep_after"))
        static = static_joules(engines, work.asleep + last, duration)
        spreads = [latency.spread(name) for name, latency in self.latencies.items()]
        return {
            **counts(self.served, duration),
            **throughput(self.served, duration, self.limits),
            "max_output_tokens_per_s": self.seconds.most,
            "max_concurrent_requests": self.in_flight.peak,
            "mean_concurrent_requests": ratio(self._flown, duration),
            **{key: value for spread in spreads for key, value in spread.items()},
            **dict.fromkeys(uncertainty.KEYS),
            "extrapolated_share": ratio(work.extrapolated, work.gpu_seconds),
            **cache(work, self.served),
            **batches(work),
            **utilisation(work, engines, duration),
            **drawn(work, self.served, static, duration),
            **clocks(work),
            **dict.fromkeys(saturation.KEYS),
            **dict.fromkeys(energy.KEYS),
            **energy.interval(engines, static, work.joules, work.reach),
            "idle_energy_joules": static - work.static,
        }
