"""The phases of a saved run: of one request, or behind the mean, the median and the p99 of all."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, frozen
from pyarrow import ArrowException

from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import parquet_table
from ksim.results.attribution import AFTER, TO_FIRST, phases
from ksim.results.steps import Floats, Ints

#: What a run is judged by, and the statistics of it; shares of the requests, from the fastest, whose phases a
#: percentile is given.
METRICS = ("ttft", "tpot", "e2el")
_BANDS = {"median": (0.50, 0.45, 0.55), "p99": (0.99, 0.98, 1.0)}
STATISTICS = ("mean", *_BANDS)


@frozen(eq=False)
class Breakdown:
    """The completed requests of the run in `directory`.

    Their seconds are by `names`, up to the first token and after it: (requests, phases).  `tokens` counts their
    output tokens.
    """

    directory: Path
    ids: Ints
    output: Ints
    names: list[str]
    to_first: Floats
    after: Floats

    @classmethod
    def read(cls, directory: Path) -> "Breakdown":
        """Read what `Result.save` wrote; raises ConfigError if there is no run, or a run without attribution."""
        if not (directory / "summary.json").is_file():
            raise ConfigError(str(directory), "there is no run; name a directory that `ksim run -o` has written")
        if not (directory / "attribution.parquet").is_file():
            raise ConfigError(str(directory), "the run says nothing of where time went (attribution.parquet): it was"
                              f" written with --stream, or by an older ksim; run {directory / 'scenario.toml'} again")
        seconds = _columns(directory / "attribution.parquet")
        if not all(np.isfinite(column).all() for column in seconds.values()):
            raise DataError(str(directory / "attribution.parquet"), "has a time that is no number; run it again")
        requests = _columns(directory / "requests.parquet")
        output = dict(zip(requests["id"].tolist(), requests["output_tokens"].tolist(), strict=True))
        found = {name.partition(".")[2] for name in seconds if name != "id"}
        families = {name.partition(".")[2] for name in found if "." in name}
        names = [name for name in phases(sorted(families), fleet=True, adapters=True, gateway=True, tiers=True)
                 if name in found]
        ids = seconds["id"].astype(np.int64)
        parts = [_stacked([seconds.get(f"{part}.{name}", np.zeros(len(ids))) for name in names], len(ids))
                 for part in (TO_FIRST, AFTER)]
        return cls(directory, ids, np.array([output[each] for each in ids.tolist()], np.int64), names, *parts)

    def place(self, request: int) -> int:
        """The row of a request; raises ConfigError if it does not exist or did not complete."""
        places = np.flatnonzero(self.ids == request)
        if len(places):
            return int(places[0])
        raise ConfigError(str(self.directory), self._missing(request))

    def _missing(self, request: int) -> str:
        table = _columns(self.directory / "requests.parquet")
        for number, status, reason in zip(table["id"], table["status"], table["reason"], strict=True):
            if number == request:
                why = f": {reason}" if reason else ""
                return f"request {request} is {status}{why}; only completed ones have all their time told"
        near = sorted(self.ids.tolist(), key=lambda other: (abs(other - request), other))[:3]
        hint = f"; the nearest are {', '.join(map(str, sorted(near)))}" if near else ""
        return f"there is no request {request} among {len(table['id']):,}{hint}"

    def of(self, request: int) -> dict[str, Floats]:
        """The phases of one request in seconds: up to its first token, after it, and in all."""
        row = self.place(request)
        return {TO_FIRST: self.to_first[row], AFTER: self.after[row], "all": self.to_first[row] + self.after[row]}

    def engines(self, request: int) -> str:
        """Which engines prefilled and decoded a request, in a run with pools; "" in any other."""
        table = _columns(self.directory / "requests.parquet")
        if "prefill_engine" not in table:
            return ""
        row = int(np.flatnonzero(table["id"] == request)[0])
        engine, source = table["engine"][row], table["prefill_engine"][row]
        if source is None or np.isnan(source):
            return f"served by engine {engine:.0f}"
        return f"prefilled by engine {source:.0f}, decoded by {engine:.0f}"

    def metric(self, name: str) -> Floats:
        """The phases of each request's TTFT, TPOT or E2EL, in seconds; outputs of one token have no TPOT."""
        if name == "tpot":
            several = self.output > 1
            return np.asarray(self.after[several] / (self.output[several] - 1)[:, None])
        return self.to_first if name == "ttft" else self.to_first + self.after

    def statistics(self) -> dict[str, Floats]:
        """The phases behind each statistic of each metric, by names such as ``p99_ttft``."""
        return {f"{statistic}_{metric}": behind(statistic, self.metric(metric))
                for metric in METRICS for statistic in STATISTICS if len(self.metric(metric))}

    def only(self, ids: Iterable[int]) -> "Breakdown":
        """The requests with these *ids*, in the order of the ids."""
        rows = {number: row for row, number in enumerate(self.ids.tolist())}
        kept = np.array([rows[number] for number in sorted(ids)], dtype=np.int64)
        return evolve(self, ids=self.ids[kept], output=self.output[kept], to_first=self.to_first[kept],
                      after=self.after[kept])

    def with_names(self, names: list[str]) -> "Breakdown":
        """The breakdown with these *names*; phases that it does not have are zero."""
        def spread(seconds: Floats) -> Floats:
            wide = np.zeros((len(seconds), len(names)))
            wide[:, [names.index(name) for name in self.names]] = seconds
            return wide

        return evolve(self, names=names, to_first=spread(self.to_first), after=spread(self.after))


def paired(one: Breakdown, other: Breakdown) -> tuple[Breakdown, Breakdown]:
    """The requests that completed in both runs, and all phases of both; raises ConfigError if there are none."""
    common = set(one.ids.tolist()) & set(other.ids.tolist())
    if not common:
        raise ConfigError(f"{one.directory}, {other.directory}", "no request completed in both runs; compare runs of"
                          " one workload")
    families = {name.partition(".")[2] for name in (*one.names, *other.names) if "." in name}
    names = [name for name in phases(sorted(families), fleet=True, adapters=True, gateway=True, tiers=True)
             if name in one.names or name in other.names]
    first, second = (run.only(common).with_names(names) for run in (one, other))
    return first, second


def behind(statistic: str, seconds: Floats) -> Floats:
    """The phases that add up to a *statistic* of the row sums of *seconds*: (requests, phases) to (phases).

    For a mean, they are the mean phases.  A percentile is one or two requests, which may be outliers.  So its phases
    are averaged over the requests around it: those from 45 to 55 % for the median, the slowest 2 % for the p99.
    """
    if statistic == "mean":
        return np.asarray(seconds.mean(axis=0))
    share, low, high = _BANDS[statistic]
    totals = seconds.sum(axis=1)
    last = len(totals) - 1
    order = np.argsort(totals, kind="stable")
    band = seconds[order[int(np.floor(low * last)): int(np.ceil(high * last)) + 1]].mean(axis=0)
    return np.asarray(band * (np.quantile(totals, share) / band.sum() if band.sum() > 0 else 0.0))


def _stacked(columns: list[Floats], rows: int) -> Floats:
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0))


def _columns(path: Path) -> Mapping[str, Any]:
    """A parquet file as arrays; raises DataError if it is none."""
    try:
        table = parquet_table(path)
    except (OSError, ArrowException) as error:
        raise DataError(str(path), f"cannot be read as a table: {error}") from None
    return {name: table[name].to_numpy() for name in table.column_names}
