"""Run a scenario to its end."""

import pickle
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial

from ksim.engine.horizon import Horizon
from ksim.flow.events import Finished, Rejected
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation import garbage
from ksim.report.result import Result
from ksim.results.metrics import Limits
from ksim.simulation import capped
from ksim.simulation.assembly import Site, build
from ksim.simulation.parallel_replicas import Coupled, alone, check, merged, shares
from ksim.simulation.processes import spread
from ksim.simulation.scenario import Scenario
from ksim.workload.row import Ledger


def simulate(scenario: Scenario, on_end: Callable[[], None] = lambda: None, jobs: int = 1) -> Result:
    """Build everything *scenario* names, run it until the last request has ended, and return what happened.

    `on_end` is called for each request that ends.  Replicas that nothing couples
    run in as many processes as *jobs* says, with the same result; where they are
    coupled, a remark of the result says by what.  Raises KsimError for a scenario
    that cannot be built, or a workload that cannot be read.
    """
    site, ledger, remarks = Site.of(scenario), Ledger(), []
    if jobs > 1:
        try:
            return _in_processes(site, scenario, on_end, jobs)
        except Coupled as reason:
            remarks.append(f"ran in one process, not in {jobs}: {reason}")
    result = play(site, scenario.workload.requests(scenario.seed, ledger), on_end, ledger)
    result.remarks = (*remarks, *result.remarks)
    return result


def play(site: Site, requests: Iterable[Request], on_end: Callable[[], None] = lambda: None,
         ledger: Ledger | None = None, here: Container[int] | None = None) -> Result:
    """Serve *requests*, ordered by arrival, with the engines of *site*, or only those that are *here*; the scenario's
    workload is not looked at, but for its `max_concurrency`."""
    log = Log()
    serve(site, requests, log, on_end, here)
    result = _result(site, log, (*(ledger.remarks() if ledger else ()), *site.remarks))
    return _remarked(site, result) if here is None else result


def serve(site: Site, requests: Iterable[Request], log: Log, on_end: Callable[[], None],
          here: Container[int] | None = None) -> None:
    """The same, into *log*, which need not keep what happens."""
    env = Horizon()
    capped.check(site)
    cluster = build(site, env, log, on_end, here)
    env.process(cluster.serve(requests))
    with garbage.paused():
        env.run()
        cluster.close()


def _in_processes(site: Site, scenario: Scenario, on_end: Callable[[], None], jobs: int) -> Result:
    """Play the replicas of *site*, which is that of *scenario*, in several processes; raises Coupled."""
    check(site)
    logs, remarks, play_some = [], (), partial(_part, scenario)
    with garbage.paused():
        for packed in spread(play_some, shares(site.scenario.serve.data_parallel_size, jobs), jobs):
            log, remarks = pickle.loads(packed)
            logs.append(log)
            for _ in (*log.of(Finished), *log.of(Rejected)):
                on_end()
        return _remarked(site, _result(site, merged(logs), remarks))


def _part(scenario: Scenario, here: Container[int]) -> bytes:
    """The log of the replicas that are *here*, and the remarks on the workload."""
    ledger = Ledger()
    requests = alone(scenario.workload.requests(scenario.seed, ledger))
    result = play(Site.of(scenario), requests, ledger=ledger, here=here)
    with garbage.paused():  # takes half as long
        return pickle.dumps((result.log, result.remarks), pickle.HIGHEST_PROTOCOL)


def _result(site: Site, log: Log, remarks: Sequence[str]) -> Result:
    scenario = site.scenario
    return Result(log, labels_of(scenario), limits_of(scenario), scenario.to_toml(), remarks, site.rates)


def _remarked(site: Site, result: Result) -> Result:
    """*result* and what is to be said of a power cap."""
    if site.scenario.power.cap is not None:
        result.remarks = (*result.remarks, *capped.remarks(site, result.summary))
    return result


def labels_of(scenario: Scenario) -> dict[str, str | int | float | bool | None]:
    """What was run, in words for the summary."""
    return {"model_id": scenario.model, "gpu": scenario.gpu, "seed": scenario.seed,
            "max_concurrency": scenario.workload.max_concurrency}


def limits_of(scenario: Scenario) -> Limits:
    """The latency targets."""
    slo = scenario.slo
    return Limits(ttft=slo.ttft, tpot=slo.tpot, e2el=slo.e2el)
