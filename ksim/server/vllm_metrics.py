"""The metrics of vLLM 0.33 that can be simulated, engine by engine; ksim/data/metrics/vllm.toml has their names."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from attrs import define, field

from ksim.foundation import catalog
from ksim.server.exposition import Bucketed, Count, MetricFamily


@cache
def _known(name: str) -> Mapping[str, Any]:
    """The tables of a file in ksim/data/metrics."""
    return catalog.load("metrics", name)


def token_buckets(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... as far as *most*."""
    series = (float(digit * 10 ** power) for power in range(len(str(most))) for digit in (1, 2, 5))
    return tuple(bound for bound in series if bound <= most)


@define(eq=False)
class Families:
    """The families of all engines' metrics, by their names without the `prefix`, which is the name of their file."""

    model_name: str
    max_model_len: int
    prefix: str = "vllm"
    by_name: dict[str, MetricFamily] = field(factory=dict, init=False)

    def family(self, name: str, kind: str, description: str, bounds: Sequence[float] = ()) -> MetricFamily:
        """The family called *name*; a missing one is made."""
        return self.by_name.setdefault(name, MetricFamily(f"{self.prefix}:{name}", kind, description, bounds))

    def info(self, name: str, description: str, labels: Mapping[str, str]) -> None:
        """Publish *labels* with a gauge that is always 1."""
        self.family(name, "gauge", description).count(labels).value = 1

    def engine(self, number: int, drafted: int = 0, transfers: bool = False) -> "EngineMetrics":
        """The metrics of engine *number*, with those of speculation if it drafts tokens, and of KV *transfers*."""
        metrics = EngineMetrics(self, {"model_name": self.model_name, "engine": str(number)})
        metrics.add_samples()
        if drafted:
            metrics.add_all("drafts", "counter")
            metrics.add_counts("spec_decode_num_accepted_tokens_per_pos", "counter", "Accepted tokens by position.",
                               {"position": [str(index) for index in range(drafted)]})
        if transfers:
            metrics.add_histograms("transfers")
        metrics.counts["engine_sleep_state", "awake"].value = 1
        return metrics


@define(eq=False)
class EngineMetrics:
    """The samples of one engine: `counts` by the name of the metric and the value of its further label, or ""."""

    families: Families
    labels: Mapping[str, str]
    counts: dict[tuple[str, str], Count] = field(factory=dict, init=False)
    histograms: dict[str, Bucketed] = field(factory=dict, init=False)

    @property
    def _tables(self) -> Mapping[str, Any]:
        return _known(self.families.prefix)

    def add_samples(self) -> None:
        """Make the samples that every engine has."""
        self.add_all("gauges", "gauge")
        self.add_all("counters", "counter")
        self.add_histograms("histograms")

    def add_all(self, table: str, kind: str) -> None:
        """Make the samples of a *table* of gauges or counters."""
        for name, row in self._tables[table].items():
            self.add_counts(name, kind, row["help"], {label: row[label] for label in row.keys() - {"help"}})

    def add_histograms(self, table: str) -> None:
        """Make the samples of a *table* of histograms."""
        buckets = {"tokens": token_buckets(self.families.max_model_len)} | self._tables["buckets"]
        for name, row in self._tables[table].items():
            family = self.families.family(name, "histogram", row["help"], [*map(float, buckets[row["buckets"]])])
            self.histograms[name] = family.histogram(self.labels)

    def add(self, name: str, value: float = 1, label: str = "") -> None:
        """Add *value* to a counter."""
        self.counts[name, label].value += value

    def set(self, name: str, value: float, label: str = "") -> None:
        """Set a gauge to *value*."""
        self.counts[name, label].value = value

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Count *value* in a histogram so many *times*."""
        self.histograms[name].observe(value, times)

    def add_counts(self, name: str, kind: str, description: str,
                   further: Mapping[str, Sequence[str]] | None = None) -> None:
        """Make the samples of a gauge or a counter, one for each value of its *further* label."""
        family = self.families.family(name, kind, description)
        for value, labels in _labelled(further or {}):
            self.counts[name, value] = family.count({**self.labels, **labels})


def _labelled(further: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for values in product(*further.values()):
        yield "".join(values), dict(zip(further, values, strict=True))
