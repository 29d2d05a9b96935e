"""KV transfers: measured seconds beside those of a connector's flows over the links between two nodes.

A transfer takes t0 + bytes / (share x line rate): t0 and share are constants of its connector.  They are fitted to
every second row of a series, its first, third and so on; the other rows are held back.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from attrs import evolve, frozen

from ksim.calibration.reading.frames import Frame, load
from ksim.foundation import catalog
from ksim.foundation.errors import DataError
from ksim.network.flows import Demand, fair_rates
from ksim.network.links import Links
from ksim.network.routes import Machines
from ksim.scenario.hardware import gpu_of, system_of
from ksim.specs.hardware import Link

_TEXTS = ("series", "kind", "engine", "connector", "gpu")
_NUMBERS = ("tp_src", "tp_dst", "line_rate_gb_s", "tokens", "bytes", "seconds")
#: The plug-in that stands for what a table calls the engine and the connector: the first words of both.
CONNECTORS = {("vLLM", "MooncakeConnector"): "mooncake", ("SGLang", "Mooncake"): "sglang"}
#: Kinds of rows that are refused, and why.
_NO_BANDWIDTH = {"p2p_prefix_pull_cpu_to_cpu": "the time is that of a whole prefill with the pull in it: no bandwidth"}


@frozen
class Row:
    """A measured transfer between two nodes: `line_rate` is that of all NICs of a node, in bytes/s."""

    series: str
    kind: str
    engine: str
    connector: str
    gpu: str
    tensor: tuple[int, int]
    line_rate: float
    tokens: int
    bytes: float
    seconds: float

    @property
    def plugin(self) -> str | None:
        """The name of the connector's plug-in, if there is one."""
        engine, connector = (text.partition(" ")[0] for text in (self.engine, self.connector))
        return CONNECTORS.get((engine, connector))

    @property
    def refusal(self) -> str:
        """Why it cannot be compared; empty if it can."""
        if self.kind != "pd_kv_push":
            return _NO_BANDWIDTH.get(self.kind, f"a transfer of kind {self.kind!r} is not modelled")
        if self.plugin is None:
            return f"no connector stands for {self.connector!r} of {self.engine!r}"
        if self.tensor[0] != self.tensor[1]:
            return "the two sides have different numbers of ranks"
        return "" if self.line_rate > 0 else "the table has no line rate"


@frozen
class Transfer:
    """A row with its predicted seconds; `fitted` says whether the connector's constants were fitted to it."""

    row: Row
    predicted: float
    fitted: bool

    @property
    def error(self) -> float:
        """In per cent of the measured seconds."""
        return 100 * (self.predicted / self.row.seconds - 1)


@frozen
class TransferReport:
    """Transfers that were compared, and how many rows were refused for which reason."""

    transfers: tuple[Transfer, ...]
    refused: Mapping[str, int]

    @property
    def held_back(self) -> tuple[Transfer, ...]:
        """Those to which nothing was fitted."""
        return tuple(transfer for transfer in self.transfers if not transfer.fitted)


def median_ape(transfers: Iterable[Transfer]) -> float:
    """The median of absolute errors, in per cent."""
    return median([abs(transfer.error) for transfer in transfers] or [math.nan])


def validate(path: Path) -> TransferReport:
    """Compare the rows of the table at *path*; raises DataError where it holds none that can be."""
    rows = read(path)
    sound = [row for row in rows if not row.refusal]
    refused = Counter(row.refusal for row in rows if row.refusal)
    if not sound:
        raise DataError(str(path), f"has no transfer that can be compared: {'; '.join(refused) or 'it has no rows'}")
    transfers = [Transfer(row, seconds(row, *constants(row)), fitted)
                 for series in by_series(sound) for row, fitted in halves(series)]
    return TransferReport(tuple(transfers), dict(refused))


def constants(row: Row) -> tuple[float, float]:
    """The seconds until the first byte leaves, and the share of the line rate, that the row's connector has."""
    connector = catalog.find("kv.transfer.connectors", row.plugin or "")()
    return connector.start, connector.share


def by_series(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows of each series, by size."""
    for _, series in groupby(sorted(rows, key=lambda row: row.series), lambda row: row.series):
        yield sorted(series, key=lambda row: row.bytes)


def halves(series: Sequence[Row]) -> Iterator[tuple[Row, bool]]:
    """The rows of a series, each with whether constants are fitted to it."""
    return ((row, place % 2 == 0) for place, row in enumerate(series))


def fit(series: Sequence[Row]) -> tuple[float, float]:
    """The t0 and the share with the least squares of relative errors on those rows of a series that are for it."""
    rows = [row for row, fitted in halves(series) if fitted]
    terms = np.array([(1 / row.seconds, row.bytes / row.line_rate / row.seconds) for row in rows])
    (start, per_line), *_ = np.linalg.lstsq(terms, np.ones(len(rows)), rcond=None)
    return float(start), float(1 / per_line)


def seconds(row: Row, start: float, share: float) -> float:
    """How long the transfer takes by itself: each rank sends its part to its peer in the other node, all at once."""
    ranks = row.tensor[0]
    nic = Link(row.line_rate / ranks)
    system = evolve(system_of(None, "hgx-h100", 2), gpus_per_node=ranks, network=nic)
    links = Links.of([Machines(system, gpu_of(system.gpu))])
    paths = [links.path(f"gpu{rank}", f"gpu{ranks + rank}") for rank in range(ranks)]
    demands = [Demand(path, share * links.line_rate(path)) for path in paths]
    return start + row.bytes / ranks / min(fair_rates(demands, links.capacities))


def read(path: Path) -> list[Row]:
    """Read the rows of the table at *path*, CSV or Parquet; raises DataError where a column or a number is missing."""
    frame = load(path)
    if missing := [name for name in (*_TEXTS, *_NUMBERS) if name not in frame]:
        raise DataError(str(path), f"has no column {missing[0]!r}; a table of transfers has"
                                   f" {', '.join((*_TEXTS, *_NUMBERS))}")
    return [_row(frame, place) for place in _records(frame)]


def _records(frame: Frame) -> Iterator[dict[str, Any]]:
    columns = {name: frame.texts(name).tolist() for name in _TEXTS}
    columns |= {name: frame.numbers(name).tolist() for name in _NUMBERS}
    columns["place"] = frame.places.tolist()
    return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))


def _row(frame: Frame, values: Mapping[str, Any]) -> Row:
    for name in ("tp_src", "tp_dst", "tokens", "bytes", "seconds"):
        if not values[name] > 0:
            raise DataError(f"{frame.path}: {frame.unit} {values['place']}",
                            f"column {name!r} is {values[name]:g}; expected a number above 0")
    rate = values["line_rate_gb_s"]
    return Row(**{name: values[name] for name in _TEXTS}, tensor=(int(values["tp_src"]), int(values["tp_dst"])),
               line_rate=0.0 if math.isnan(rate) else rate * 1e9, tokens=int(values["tokens"]),
               bytes=values["bytes"], seconds=values["seconds"])
