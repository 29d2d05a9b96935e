"""Results of runs that are too long to be kept: they are written during the run, and forgotten.

docs/glossary.md says what such a run leaves out.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from ksim.flow.copied import Copied
from ksim.flow.decoded import Decoded
from ksim.flow.events import Arrived, Emitted, Event, Failed, Finished, LinkUsed, Prefilled, Rejected, Stepped
from ksim.flow.log import Columns, Log, only
from ksim.flow.routing import Chosen
from ksim.flow.step_block import StepBlock
from ksim.results.adapters import adapter_summary
from ksim.results.arrays import Bools, Ints
from ksim.results.arrow import flags
from ksim.results.history import KINDS, History
from ksim.results.metrics import LatencyTargets, Summary
from ksim.results.requests import Requests
from ksim.results.routing import routing_rows
from ksim.results.streaming.tally import Tally
from ksim.results.tables import request_table, step_table
from ksim.results.tiers import Copies, tier_summary
from ksim.results.totals import Refusals

Events = dict[type[Event], Columns]

#: The number of ended requests, or of new steps, that are written at once.
_REQUESTS, _STEPS = 1 << 12, 1 << 12


class Sink(Log):
    """A log that writes requests.parquet and steps.parquet during the run.

    `Finished`, `Rejected` and `Failed` are the last events of a request, but that its blocks may be `Released` later.
    If they come before the steps that sampled its tokens, they wait for these.  The sink keeps requests that have not
    ended, and steps since the first admission of any of them.  It forgets at once how much links are used.
    """

    def __init__(self, directory: Path, limits: LatencyTargets) -> None:
        super().__init__()
        self._tally, self._directory = Tally(limits), directory
        self._writers: dict[str, parquet.ParquetWriter] = {}
        self.refusals = Refusals()
        self._ended = self._stepped = self._chosen = 0
        self._copies = Copies()
        #: How many steps of each engine are written.
        self._written: dict[int, int] = {}

    def add(self, event: Event) -> None:
        """Take one event."""
        kind = type(event)
        if kind is LinkUsed:
            return
        if isinstance(event, Copied):
            self._copies.add(event)
            if event.target != "gpu":  # a request may have ended before its KV is stored
                return
        if isinstance(event, Chosen):
            self._choose(event)
            return
        if kind is Stepped:
            self._write_many()
            self._stepped += 1
        elif kind is Arrived:
            self._write_many()
        elif kind is Finished or kind is Rejected or kind is Failed:
            self._ended += 1
            if isinstance(event, Rejected):
                self.refusals.add(event.reason)
        super().add(event)

    def record(self, block: StepBlock) -> None:
        """Record consecutive steps of an engine; write if there is much to write."""
        self._write_many()
        self._stepped += len(block)
        super().record(block)

    def _choose(self, event: Chosen) -> None:
        """Take a choice of a router, which nothing later changes; write if there are many."""
        super().add(event)
        self._chosen += 1
        if self._chosen == _REQUESTS:
            self._write_choices()

    def _write_choices(self) -> None:
        if self._chosen:
            self._put("routing", routing_rows(self.columns(Chosen)))
            self._blocks[Chosen], self._chosen = [], 0

    def __enter__(self) -> "Sink":
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def summary(self) -> Summary:
        """Write what is left, unfinished requests included, and return the numbers of the run."""
        self._write(at_end=True)
        self._write_choices()
        engines = sorted(self.engines, key=lambda built: built.engine)
        return self._tally.summary(engines) | adapter_summary(self) | tier_summary(engines, self._copies)

    def _write_many(self) -> None:
        """Write if there is much to write; called before the next event, when all events so far are complete."""
        if self._ended >= _REQUESTS or self._stepped >= _STEPS:
            self._write()

    def _write(self, at_end: bool = False) -> None:
        self._ended = self._stepped = 0
        steps = {block.engine: block.first + len(block) for block in self.step_blocks}
        now, later = self._split(steps)
        log = Log.of_columns(self.engines, now, self._step_blocks, self.before)
        log.gated = self.gated
        history = History(log)
        requests = history.requests
        ended = np.full(len(requests), at_end) | _over(history)
        numbers = np.array([self._written.get(built.engine, 0) for built in history.engines], np.int64)
        stepped = history.steps.index >= numbers[history.steps.engine]
        self._put("requests", request_table(history, None).filter(flags(ended)))
        self._put("steps", step_table(history).filter(flags(stepped)))
        self._tally.add(history, ended, stepped, np.inf if at_end else _first_arrival(requests, ended))
        self._written |= steps
        self._forget(history, ended, now, later)

    def _put(self, name: str, table: pa.Table) -> None:
        if name not in self._writers:
            self._writers[name] = parquet.ParquetWriter(
                self._directory / f"{name}.parquet", table.schema, compression="zstd", use_dictionary=False)
        if len(table):
            self._writers[name].write_table(table)

    def _split(self, steps: Mapping[int, int]) -> tuple[Events, Events]:
        """The events that are complete after so many *steps* of each engine, and those that wait for more steps."""
        prefilled = self._early(Prefilled, "step", steps)
        late = np.append(self._early(Emitted, "last", steps), prefilled)
        now: Events = {kind: self.columns(kind) for kind in KINDS}
        later: Events = {}
        for kind, ids in ((Emitted, late), (Decoded, late), (Finished, late), (Failed, late), (Prefilled, prefilled)):
            waits = np.isin(now[kind]["request_id"], ids)
            if waits.any():
                now[kind], later[kind] = only(now[kind], ~waits), only(now[kind], waits)
        return now, later

    def _early(self, kind: type[Event], name: str, steps: Mapping[int, int]) -> Ints:
        """The requests of the events that name a step which is yet to come."""
        events, early = self.columns(kind), np.zeros(0, np.int64)
        for engine in np.unique(events["engine"]).tolist():
            which = (events["engine"] == engine) & (events[name] >= steps.get(engine, 0))
            early = np.append(early, events["request_id"][which])
        return early

    def _forget(self, history: History, ended: Bools, now: Events, later: Events) -> None:
        """Keep only what is still needed of the events written *now*, and those for *later*."""
        requests = history.requests
        for kind, columns in now.items():
            rows = np.arange(len(requests)) if kind is Arrived else requests.rows(columns["request_id"])
            self._blocks[kind] = [only(columns, ~ended[rows]), *([later[kind]] if kind in later else [])]
        kept = []
        for block in self._step_blocks:
            place = int(history.steps.places(np.array([block.engine]))[0])
            splits = history.splits
            since = np.append(requests.admitted[~ended & (requests.engine == place)],
                              splits.prefilling[~ended[splits.row] & (splits.source == place)])
            if block.scheduled[-1] >= np.nanmin(since, initial=np.inf):
                kept.append(block)
            else:
                ended_by = max(self.before.get(block.engine, 0.0), float(block.end.max()))
                self.before[block.engine] = ended_by
        self._step_blocks = kept


def _over(history: History) -> Bools:
    """The requests that have ended and hold no blocks of a prefill engine any more."""
    ended, splits = history.requests.ended.copy(), history.splits
    ended[splits.row[~np.isnan(splits.prefilled) & ~(splits.released <= history.duration)]] = False
    return ended


def _first_arrival(requests: Requests, ended: Bools) -> float:
    """The arrival of the first request that has not ended, or of the next one to come."""
    return float(min(requests.arrival[~ended].min(initial=np.inf), requests.arrival.max(initial=-np.inf)))
