"""The model of queues by which llm-d's workload variant autoscaler sizes replicas: M/M/1 with a rate for each batch.

Rules are those of its pkg/analyzer, commit b08b1c77 (February 2026).  Times are in milliseconds, rates in requests/s.
Latencies are means, and no percentiles.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from attrs import define, field, frozen
from attrs.validators import ge, gt

#: How near to nothing and to the most a rate may come, and what a target of tokens/s leaves of the most.
_MARGIN, _RESERVE = 0.001, 0.1
#: How near a search comes to its target, and the most steps of it.
_CLOSE, _STEPS = 1e-6, 100


class TargetTooTight(Exception):
    """An empty system is slower than the target."""


@frozen
class BatchTimes:
    """How long a pass takes: `alpha`, and for each request of the batch `beta` a computed token, `gamma` a read one.

    `prompt` and `output` are mean tokens of a request.
    """

    alpha: float = field(validator=gt(0))
    beta: float = field(validator=ge(0))
    gamma: float = field(validator=ge(0))
    prompt: float = field(validator=ge(0))
    output: float = field(validator=ge(1))

    def iteration(self, batch: float) -> float:
        computed = (self.prompt + self.output) / (self.output + 1)
        return self.alpha + batch * (self.beta * computed + self.gamma * self._read)

    def prefill(self, batch: float) -> float:
        """The time of a prompt; none without one."""
        return self.iteration(batch) + (self.beta + self.gamma) * self.prompt if self.prompt else 0.0

    def decode(self, batch: float) -> float:
        """The time of a token."""
        return self.iteration(batch) + self.beta + self.gamma * self._read

    @property
    def _read(self) -> float:
        return self.prompt + self.output / 2


@frozen
class QueueState:
    """The means of a queue at a rate: requests in service, shares of the batch, and times of a request."""

    throughput: float
    in_service: float
    utilization: float
    response: float
    wait: float
    prefill: float
    itl: float

    @property
    def ttft(self) -> float:
        return self.wait + self.prefill + self.itl


@frozen
class QueueTarget:
    """The longest mean times to the first token and between tokens, and tokens/s; 0 for none."""

    ttft: float = 0.0
    itl: float = 0.0
    tokens: float = 0.0


@frozen
class Sized:
    """The highest rate by each target."""

    by_ttft: float
    by_itl: float
    by_tokens: float

    @property
    def rate(self) -> float:
        return min(self.by_ttft, self.by_itl, self.by_tokens)


@define(slots=False)
class QueueModel:
    """A replica that serves up to `max_batch` requests while `max_queue` more wait; others are turned away."""

    times: BatchTimes
    max_batch: int = field(validator=gt(0))
    max_queue: int = field(validator=ge(0))

    @cached_property
    def _rates(self) -> "np.ndarray":
        """Requests/s that end, by the batch, from 1 on."""
        times = self.times
        return np.array([1000.0 * batch / (times.prefill(batch) + times.output * times.decode(batch))
                         for batch in range(1, self.max_batch + 1)])

    @property
    def most(self) -> float:
        """The highest rate: a little below what full batches end."""
        return float(self._rates[-1]) * (1 - _MARGIN)

    def at(self, rate: float) -> QueueState:
        """The queue at *rate*."""
        chances = self._chances(rate)
        present = np.arange(len(chances))
        in_service = float(np.minimum(present, self.max_batch) @ chances)
        throughput = rate * (1 - float(chances[-1]))
        response, service = (1000.0 * count / throughput for count in (float(present @ chances), in_service))
        prefill = self.times.prefill(in_service)
        return QueueState(throughput, in_service, min(1.0, in_service / self.max_batch), response,
                          max(0.0, response - service), prefill, (service - prefill) / self.times.output)

    def _chances(self, rate: float) -> "np.ndarray":
        """How likely it is that so many requests are present."""
        ends = np.concatenate([self._rates, np.full(self.max_queue, self._rates[-1])])
        logs = np.concatenate([[0.0], np.cumsum(np.log(rate / ends))])
        weights = np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum())

    def sized(self, target: QueueTarget) -> Sized:
        """The highest rates that meet *target*; raises TargetTooTight where none does."""
        return Sized(self._highest(target.ttft, lambda rate: self.at(rate).ttft),
                     self._highest(target.itl, lambda rate: self.at(rate).itl),
                     self.most * (1 - _RESERVE) if target.tokens > 0 else self.most)

    def _highest(self, target: float, latency: Callable[[float], float]) -> float:
        """The rate at which *latency*, which rises with it, is the *target*; the most if it never is."""
        low, high = float(self._rates[0]) * _MARGIN, self.most
        if target <= 0 or latency(high) <= target:
            return high
        if latency(low) > target * (1 + _CLOSE):
            raise TargetTooTight
        for _ in range(_STEPS):
            middle = (low + high) / 2
            found = latency(middle)
            if abs(found - target) <= _CLOSE * target:
                return middle
            low, high = (low, middle) if found > target else (middle, high)
        return low
