"""Run a scenario to its end."""

from collections.abc import Callable, Iterable

import simpy

from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation import collector
from ksim.results.metrics import Limits
from ksim.results.result import Result
from ksim.studies.assembly import Site, build
from ksim.studies.scenario import Scenario
from ksim.workload.ledger import Ledger


def simulate(scenario: Scenario, on_end: Callable[[], None] = lambda: None) -> Result:
    """Build everything *scenario* names, run it until the last request has ended, and return what happened.

    `on_end` is called for each request that ends.  Raises KsimError for a
    scenario that cannot be built, or a workload that cannot be read.
    """
    ledger = Ledger()
    return play(Site.of(scenario), scenario.workload.requests(scenario.seed, ledger), on_end, ledger)


def play(site: Site, requests: Iterable[Request], on_end: Callable[[], None] = lambda: None,
         ledger: Ledger | None = None) -> Result:
    """Serve *requests*, ordered by arrival, with the engines of *site*; the scenario's workload is not looked at,
    but for its `max_concurrency`."""
    log, scenario = Log(), site.scenario
    serve(site, requests, log, on_end)
    return Result(log, labels_of(scenario), limits_of(scenario), scenario.to_toml(),
                  ledger.remarks() if ledger else (), site.rates)


def serve(site: Site, requests: Iterable[Request], log: Log, on_end: Callable[[], None]) -> None:
    """Serve *requests* until the last of them has ended; what happens goes into *log*."""
    env = simpy.Environment()
    cluster = build(site, env, log, on_end)
    env.process(cluster.serve(requests))
    with collector.paused():
        env.run()


def labels_of(scenario: Scenario) -> dict[str, str | int | float | bool | None]:
    """What was run, in words for the summary."""
    return {"model_id": scenario.model, "gpu": scenario.gpu, "seed": scenario.seed,
            "max_concurrency": scenario.workload.max_concurrency}


def limits_of(scenario: Scenario) -> Limits:
    """The latency targets."""
    slo = scenario.slo
    return Limits(ttft=slo.ttft, tpot=slo.tpot, e2el=slo.e2el)
