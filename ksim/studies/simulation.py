"""Run a scenario to its end."""

from collections.abc import Callable

import simpy

from ksim.flow.events import Log
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
    env, log, ledger = simpy.Environment(), Log(), Ledger()
    site = Site.of(scenario)
    cluster = build(site, env, log, on_end)
    env.process(cluster.serve(scenario.workload.requests(scenario.seed, ledger)))
    with collector.paused():
        env.run()
    return Result(log, _labels(site.scenario), _limits(site.scenario), site.scenario.to_toml(), ledger.remarks())


def _labels(scenario: Scenario) -> dict[str, str | int | float | bool | None]:
    return {"model_id": scenario.model, "gpu": scenario.gpu, "seed": scenario.seed,
            "max_concurrency": scenario.workload.max_concurrency}


def _limits(scenario: Scenario) -> Limits:
    slo = scenario.slo
    return Limits(ttft=slo.ttft, tpot=slo.tpot, e2el=slo.e2el)
