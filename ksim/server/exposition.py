"""Prometheus metrics whose counting costs one addition, and their text, which prometheus_client writes.

The library's own metrics take a lock at each count; here, one event loop counts and writes the text.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from attrs import define, field
from prometheus_client import PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["CONTENT_TYPE", "Bucketed", "Count", "MetricFamily", "text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Metrics of this process, with the library's names.
_OF_PROCESS = (ProcessCollector(registry=None), PlatformCollector(registry=None))


@define(eq=False)
class Count:
    """The sample of a counter, a gauge or a summary; a summary also has the `count` of its values."""

    value: float = 0.0
    count: int = 0

    def observe(self, value: float) -> None:
        """Add a value of a summary."""
        self.value += value
        self.count += 1


@define(eq=False)
class Bucketed:
    """The sample of a histogram: it counts values in buckets with these upper `bounds`."""

    bounds: Sequence[float]
    total: float = 0.0
    counts: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Count *value* so many *times*."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@define(eq=False)
class MetricFamily:
    """All samples of the metric `name` by their labels; its `kind` is counter, gauge, histogram or summary."""

    name: str
    kind: str
    help: str
    bounds: Sequence[float] = ()
    samples: dict[tuple[tuple[str, str], ...], Count | Bucketed] = field(factory=dict, init=False)

    def count(self, labels: Mapping[str, str]) -> Count:
        """The sample with these *labels*; a missing one is made."""
        sample = self.samples.setdefault(tuple(labels.items()), Count())
        assert isinstance(sample, Count), "histograms have no single value"
        return sample

    def histogram(self, labels: Mapping[str, str]) -> Bucketed:
        """The sample of a histogram with these *labels*; a missing one is made."""
        key = tuple(labels.items())
        if key not in self.samples:
            self.samples[key] = Bucketed(self.bounds)
        sample = self.samples[key]
        assert isinstance(sample, Bucketed), "only histograms have buckets"
        return sample

    @property
    def metric(self) -> Metric:
        """The family as the library has it."""
        metric = Metric(self.name, self.help, self.kind)
        for pairs, sample in self.samples.items():
            labels = dict(pairs)
            if isinstance(sample, Bucketed):
                below = 0
                for bound, count in zip((*sample.bounds, inf), sample.counts, strict=True):
                    below += count
                    metric.add_sample(f"{self.name}_bucket", {**labels, "le": floatToGoString(bound)}, below)
            if isinstance(sample, Bucketed) or self.kind == "summary":
                metric.add_sample(f"{self.name}_count", labels, sample.count)
            total = sample.total if isinstance(sample, Bucketed) else sample.value
            ending = {"counter": "_total", "gauge": ""}.get(self.kind, "_sum")
            metric.add_sample(f"{self.name}{ending}", labels, total)
        return metric


@define(eq=False)
class _Collected(Collector):
    families: Sequence[MetricFamily]

    def collect(self) -> Iterator[Metric]:
        yield from (family.metric for family in self.families)
        for collector in _OF_PROCESS:
            yield from collector.collect()


def text(families: Sequence[MetricFamily]) -> bytes:
    """*families*, and the metrics of this process, as a Prometheus server reads them."""
    return generate_latest(_Collected(families))
