"""Run a scenario that is too long to keep in memory: write its rows while it runs."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import Factory, define, field, frozen

from ksim.flow.request import Request
from ksim.report import run_directory
from ksim.report.formats import vllm_block
from ksim.report.result import judged
from ksim.results.metrics import Summary
from ksim.results.streaming import Sink
from ksim.results.totals import Refusals
from ksim.simulation import power_cap
from ksim.simulation.deployment import Deployment
from ksim.simulation.fleet import Fleet
from ksim.simulation.scenario import Scenario
from ksim.simulation.simulate import labels_of, requests_of, serve, targets_of
from ksim.workload.row import Ledger


@frozen
class Streamed:
    """What is left of a streamed run: its summary and the directory of its files.

    `remarks` tell what users should know of the workload, the GPU and the power cap; `refusals` why requests were
    rejected.
    """

    summary: Summary
    directory: Path
    remarks: tuple[str, ...] = ()
    refusals: Refusals = Factory(Refusals)

    @property
    def served(self) -> bool:
        """Whether any request completed."""
        return bool(self.summary["completed"])

    def vllm_block(self) -> str:
        """The numbers as `vllm bench serve` prints them."""
        return vllm_block(self.summary)


def stream(scenario: Scenario | Deployment | Fleet, directory: Path | str,
           on_end: Callable[[], None] = lambda: None) -> Streamed:
    """Run *scenario* as `simulate` does, and write requests.parquet, steps.parquet, summary.json and scenario.toml.

    Only requests in flight are held in memory.  docs/glossary.md lists what such a run does not report.  An earlier run
    in *directory* is replaced.  Raises ConfigError where the directory cannot be written, and what `simulate` raises.
    """
    fleet, ledger = Fleet.of(scenario), Ledger()
    return stream_requests(fleet, requests_of(fleet, ledger), directory, on_end, ledger)


def stream_requests(fleet: Fleet | Deployment, requests: Iterable[Request], directory: Path | str,
                    on_end: Callable[[], None] = lambda: None, ledger: Ledger | None = None) -> Streamed:
    """Run *fleet* as `stream` does, with these *requests*, ordered by arrival, as its workload."""
    fleet = Fleet.of(fleet)
    with writing(fleet.scenario, directory) as written:
        serve(fleet, requests, written.sink, on_end)
        written.end(fleet)
    remarks = (*(ledger.remarks() if ledger else ()), *fleet.remarks, *power_cap.remarks(fleet, written.summary))
    return Streamed(written.summary, written.target, remarks, written.sink.refusals)


@define(eq=False)
class Written:
    """A run whose rows `sink` writes to `directory`, which becomes `target` once it has ended."""

    directory: Path
    target: Path
    sink: Sink
    summary: Summary = field(factory=dict, init=False)

    def end(self, fleet: Fleet) -> None:
        """Write the summary of what *fleet* did, and its scenario."""
        scenario = fleet.scenario
        self.summary = judged(self.sink.summary(), labels_of(fleet), targets_of(scenario), fleet.rates,
                              fleet.pool_rates)
        (self.directory / "scenario.toml").write_text(scenario.to_toml(), encoding="utf-8")
        text = json.dumps(self.summary, indent=2, allow_nan=False, ensure_ascii=False)
        (self.directory / "summary.json").write_text(text + "\n", encoding="utf-8")


@contextmanager
def writing(scenario: Scenario, directory: Path | str) -> Iterator[Written]:
    """Write the run of *scenario* that the caller makes to *directory*, whole or not at all."""
    target = Path(directory).resolve()
    with run_directory.replacing(target) as new, Sink(new, targets_of(scenario)) as sink:
        yield Written(new, target, sink)
