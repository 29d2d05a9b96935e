"""What the router chose, engine by engine, and what it saw of the engines then."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ksim.page.document import Document
from ksim.page.markup import Markup, note, table
from ksim.page.reading import Run
from ksim.report.wording import number, percent
from ksim.results.arrays import Bools, Floats, Ints, sums

#: What is shown of engines at the moments when they were chosen: columns of routing.parquet, and their titles.
_SEEN = {"outstanding": "outstanding", "waiting": "waiting", "running": "running", "kv_usage": "KV usage",
         "prefix_hit_tokens": "tokens cached"}


def add(document: Document, run: Run) -> None:
    """Add the choices of a router that looks at engines; other runs have none."""
    routing = run.routing
    if routing is None or not len(routing):
        return
    seen = [name for name in _SEEN if name in routing.column_names]
    columns = ("engine", ">requests", ">of all", *(f">{_SEEN[name]}, chosen / mean" for name in seen))
    document.section("routing", "The router, by engine",
                     table(columns, _rows(routing, seen), "What was chosen, and what was seen of it"),
                     note("What the router saw of an engine on average when it chose it, and over all choices. Metrics"
                          " are those of the last scrape that had arrived."))


def _rows(routing: pa.Table, seen: list[str]) -> Iterator[list[Markup | str]]:
    offered, chosen = _offered(routing)
    means = {name: (_means(offered, values, chosen), _means(offered, values, np.ones_like(chosen)))
             for name in seen for values in [_flat(routing, name)]}
    for engine in np.unique(offered).tolist():
        count = int(chosen[offered == engine].sum())
        yield [f"engine {engine}", number(count), percent(count / len(routing)),
               *(f"{number(own[engine])} / {number(mean[engine])}" for own, mean in means.values())]


def _offered(routing: pa.Table) -> tuple[Ints, Bools]:
    """The engines of all choices, one after the other, and which were chosen."""
    lists = routing["engines"].combine_chunks()
    owners = np.repeat(np.arange(len(routing)), np.diff(lists.offsets.to_numpy()))
    offered = lists.flatten().to_numpy()
    chosen = offered == routing["engine"].to_numpy()[owners]
    prefill = routing["prefill_engine"].combine_chunks().fill_null(-1).to_numpy()
    return offered, chosen | (offered == prefill[owners])


def _flat(routing: pa.Table, name: str) -> Floats:
    """The numbers of a column of lists, one after the other; nan where the router did not ask."""
    values = routing[name].combine_chunks().flatten()
    return np.asarray(values.to_numpy(zero_copy_only=False), np.float64)


def _means(engines: Ints, values: Floats, which: Bools) -> dict[int, float | None]:
    """The mean of those *values* that are known, by engine."""
    known = np.asarray(which, bool) & ~np.isnan(values)
    most = int(engines.max()) + 1
    counts, totals = sums(engines[known], np.ones(int(known.sum())), most), sums(engines[known], values[known], most)
    return {engine: float(totals[engine] / counts[engine]) if counts[engine] else None for engine in range(most)}
