"""Arrival processes."""

from collections.abc import Iterator
from itertools import islice, repeat
from math import inf

import numpy as np
from attrs import field, frozen
from attrs.validators import and_, ge, gt, in_, le, optional
from numpy.typing import NDArray

_BLOCK = 4096


@frozen
class Arrivals:
    """Arrival times as `vllm bench serve` draws them; the first is always 0 s.

    "poisson", "gamma" and "constant" have a `rate` in requests/s; "burst" sends
    all requests at once.  `burstiness` is the shape of "gamma": the standard
    deviation of the gaps is 1 / sqrt(burstiness) of their mean, so 1 is Poisson and
    less is burstier.  `exact` stretches the times so that the last arrival fits the
    rate, as `vllm bench serve` does; without it, the rate of a short run varies.
    """

    process: str = field(default="poisson", validator=in_(("poisson", "gamma", "constant", "burst")))
    """Distribution of the gaps; burst sends all at once. Source: vllm bench serve."""
    rate: float | None = field(default=None, validator=optional(and_(gt(0), le(1e9))))
    """Mean rate; burst has none. Unit: requests/s. Default: required except for burst. Example: 10.0."""
    burstiness: float | None = field(default=None, validator=optional(and_(ge(1e-3), le(1e6))))
    """Shape of gamma: 1 is Poisson, less is burstier. Unit: ratio. Default: required for gamma. Source: vllm bench
    serve --burstiness. Example: 0.5."""
    exact: bool = False
    """Stretch the times so that the last arrival fits the rate, as `vllm bench serve` does."""

    def __attrs_post_init__(self) -> None:
        if (self.rate is None) != (self.process == "burst"):
            raise ValueError(f"process {self.process!r} takes {'no' if self.rate else 'a'} rate")
        if (self.burstiness is None) == (self.process == "gamma"):
            raise ValueError(f"process {self.process!r} takes {'no' if self.burstiness else 'a'} burstiness")

    def times(self, rng: "np.random.Generator", count: int) -> Iterator[float]:
        """Yield *count* times in seconds, ascending from 0."""
        if self.process == "burst":
            return repeat(0.0, count)
        return islice(self._stretched(rng, count) if self.exact else self._endless(rng), count)

    def _endless(self, rng: "np.random.Generator") -> Iterator[float]:
        now = 0.0
        yield now
        while True:
            times = now + np.cumsum(self._gaps(rng, _BLOCK))
            yield from times.tolist()
            now = times[-1]

    def _stretched(self, rng: "np.random.Generator", count: int) -> Iterator[float]:
        times = np.cumsum(self._gaps(rng, count - 1))
        if count > 1 and times[-1] > 0:
            times *= (count - 1) / (self.rate or inf) / times[-1]
        yield 0.0
        yield from times.tolist()

    def _gaps(self, rng: "np.random.Generator", count: int) -> NDArray[np.float64]:
        rate, shape = self.rate or inf, self.burstiness or 1.0
        if self.process == "constant":
            return np.full(count, 1 / rate)
        return rng.gamma(shape, 1 / (rate * shape), count)
