"""Run a scenario that is too long to be kept: its rows are written while it goes on."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from attrs import Factory, frozen

from ksim.flow.request import Request
from ksim.report import run_directory
from ksim.report.console import vllm_block
from ksim.report.result import judged
from ksim.results.metrics import Summary
from ksim.results.refusals import Refusals
from ksim.results.streaming.sink import Sink
from ksim.simulation import capped
from ksim.simulation.assembly import Site
from ksim.simulation.scenario import Scenario
from ksim.simulation.simulate import labels_of, limits_of, serve
from ksim.workload.row import Ledger


@frozen
class Streamed:
    """What a run left: its summary, the directory with its files, remarks on how its workload was read, and why
    requests were rejected."""

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


def stream(scenario: Scenario, directory: Path | str, on_end: Callable[[], None] = lambda: None) -> Streamed:
    """Run *scenario* as `simulate` does, and write requests.parquet, steps.parquet, summary.json and scenario.toml.

    Memory holds what is in flight, however many requests come.  docs/glossary.md says what such a run does not tell.
    An earlier run in *directory* is replaced; raises ConfigError where it cannot be written, and what `simulate` does.
    """
    site, ledger = Site.of(scenario), Ledger()
    return stream_requests(site, scenario.workload.requests(scenario.seed, ledger), directory, on_end, ledger)


def stream_requests(site: Site, requests: Iterable[Request], directory: Path | str,
                    on_end: Callable[[], None] = lambda: None, ledger: Ledger | None = None) -> Streamed:
    """The same of these *requests*, ordered by arrival."""
    scenario, target = site.scenario, Path(directory).resolve()
    limits = limits_of(scenario)
    with run_directory.replacing(target) as new:
        with Sink(new, limits) as sink:
            serve(site, requests, sink, on_end)
            summary = judged(sink.summary(), labels_of(scenario), limits, site.rates)
        (new / "scenario.toml").write_text(scenario.to_toml(), encoding="utf-8")
        text = json.dumps(summary, indent=2, allow_nan=False, ensure_ascii=False)
        (new / "summary.json").write_text(text + "\n", encoding="utf-8")
    remarks = (*(ledger.remarks() if ledger else ()), *site.remarks, *capped.remarks(site, summary))
    return Streamed(summary, target, remarks, sink.refusals)
