"""A load that varies: a fleet has to carry its busiest time, and GPUs that follow it cost less than those that stay."""

from math import ceil, isfinite

import numpy as np
from attrs import evolve, frozen

from ksim.foundation.errors import ConfigError
from ksim.foundation.units import HOUR
from ksim.results.steps import Floats
from ksim.scenario.scenario import Scenario
from ksim.views.wording import number, percent

__all__ = ["LoadShape", "at_its_peak"]

#: The parts of a load in each of which its rate is a mean: five minutes of a day.
_PARTS = 288


@frozen(eq=False)
class LoadShape:
    """The mean rate of a load in each of equal parts of `length` seconds: requests/s, (parts,)."""

    length: float
    rates: Floats

    @property
    def peak(self) -> float:
        """The rate of the busiest part, to four digits."""
        return float(f"{self.rates.max():.4g}")

    def gpu_hours(self, replicas: int, gpus: int, carried: float) -> tuple[float, float]:
        """The GPU-hours of the load: with all *replicas*, of so many *gpus*, all the time, and with as many at a time
        as carry its rate.  Each carries *carried* requests/s."""
        needed = sum(min(replicas, ceil(rate / carried - 1e-9)) for rate in self.rates.tolist())
        hours = gpus * self.length / HOUR
        return hours * replicas * len(self.rates), hours * needed

    def said(self, replicas: int, gpus: int, carried: float) -> str:
        """What GPUs that follow the load would save; the arguments are those of `gpu_hours`."""
        static, following = self.gpu_hours(replicas, gpus, carried)
        least, mean = float(self.rates.min()), float(self.rates.mean())
        many = f"{replicas * gpus:,} GPU{'s' * (replicas * gpus > 1)}"
        return (f"the load has {number(least)} to {number(self.peak)} requests/s, {number(mean)} on the mean: {many}"
                f" all the time are {number(static)} GPU-hours, and as many as each {number(self.length)} s need"
                f" {number(following)} ({percent(following / static)}); `ksim autoscalers` says how near to that"
                " autoscalers come")


def at_its_peak(scenario: Scenario) -> tuple[Scenario, LoadShape | None]:
    """*scenario* with a steady load at the peak of its own, and how that varies; as it is where it does not.

    Raises ConfigError for a load without an end.
    """
    synthetic = scenario.workload.synthetic
    if synthetic is None or not (synthetic.arrivals.changes or synthetic.arrivals.spikes):
        return scenario, None
    arrivals = synthetic.arrivals
    if not arrivals.changes or not isfinite(arrivals.rates.length):
        raise ConfigError("workload.synthetic.arrivals", "has no end, and a load that varies is asked about as a whole;"
                                                         " give phases that all have a length, or a table of rates")
    edges = np.linspace(0.0, arrivals.rates.length, _PARTS + 1)
    shape = LoadShape(float(edges[1]), np.diff(arrivals.expected_by(edges)) / edges[1])
    steady = evolve(arrivals, rate=shape.peak, phases=(), points=(), path=None, spikes=(), steps=False, repeat=False)
    return evolve(scenario, workload=evolve(scenario.workload, synthetic=evolve(synthetic, arrivals=steady))), shape
