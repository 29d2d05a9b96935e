"""Run a scenario to its end."""

from collections.abc import Callable, Iterable

from ksim.flow.events import Log
from ksim.flow.request import Request
from ksim.foundation import collector
from ksim.results.metrics import Limits
from ksim.results.result import Result
from ksim.runtime.horizon import Horizon
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
         ledger: Ledger | None = None, skips: bool = True) -> Result:
    """Serve *requests*, ordered by arrival, with the engines of *site*; the scenario's workload is not looked at,
    but for its `max_concurrency`."""
    env, log, scenario = Horizon(), Log(), site.scenario
    cluster = build(site, env, log, on_end, skips)
    env.process(cluster.serve(requests))
    with collector.paused():
        env.run()
    return Result(log, _labels(scenario), _limits(scenario), scenario.to_toml(), ledger.remarks() if ledger else (),
                  site.rates)


def _labels(scenario: Scenario) -> dict[str, str | int | float | bool | None]:
    return {"model_id": scenario.model, "gpu": scenario.gpu, "seed": scenario.seed,
            "max_concurrency": scenario.workload.max_concurrency}


def _limits(scenario: Scenario) -> Limits:
    slo = scenario.slo
    return Limits(ttft=slo.ttft, tpot=slo.tpot, e2el=slo.e2el)
