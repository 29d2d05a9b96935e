"""Run a scenario to its end; replicas that nothing couples may run in processes of their own."""

import pickle
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial

from ksim.engine.horizon import Horizon
from ksim.flow.events import Finished, Rejected
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation import garbage
from ksim.foundation.errors import KsimError
from ksim.report.result import Result
from ksim.results.metrics import LatencyTargets
from ksim.simulation import power_cap
from ksim.simulation.assembly import build
from ksim.simulation.deployment import Deployment
from ksim.simulation.plugins import plugin
from ksim.simulation.processes import run_in_processes
from ksim.simulation.scenario import Scenario
from ksim.workload.row import Ledger


class Coupled(KsimError):
    """Replicas have to be played together, for the reason given."""


def simulate(scenario: Scenario | Deployment, on_end: Callable[[], None] = lambda: None, jobs: int = 1) -> Result:
    """Build everything that *scenario* names, run it until the last request has ended, and return what happened.

    `on_end` is called for each request that ends.  Replicas that do not depend on each other run in *jobs* processes;
    the result is the same.  Where they do depend on each other, a remark of the result says why.  A Deployment is a
    scenario that has been built already.  Raises KsimError for a scenario that cannot be built or a workload that
    cannot be read.
    """
    deployment = scenario if isinstance(scenario, Deployment) else Deployment.of(scenario)
    ledger, remarks = Ledger(), []
    if jobs > 1:
        try:
            return _in_processes(deployment, on_end, jobs)
        except Coupled as reason:
            remarks.append(f"ran in one process, not in {jobs}: {reason}")
    result = play(deployment, _requests(deployment, ledger), on_end, ledger)
    result.remarks = (*remarks, *result.remarks)
    return result


def play(deployment: Deployment, requests: Iterable[Request], on_end: Callable[[], None] = lambda: None,
         ledger: Ledger | None = None, here: Container[int] | None = None) -> Result:
    """Serve *requests*, ordered by arrival, with the engines of *deployment*, or with those that are *here* alone.

    Of the scenario's own workload only `max_concurrency` counts.
    """
    log = Log()
    serve(deployment, requests, log, on_end, here)
    result = _result(deployment, log, (*(ledger.remarks() if ledger else ()), *deployment.remarks))
    return _with_cap_remarks(deployment, result) if here is None else result


def serve(deployment: Deployment, requests: Iterable[Request], log: Log, on_end: Callable[[], None],
          here: Container[int] | None = None) -> None:
    """Serve *requests* as `play` does, and record what happens in *log*, which may drop what it has written."""
    env = Horizon()
    power_cap.check(deployment)
    cluster = build(deployment, env, log, on_end, here)
    env.process(cluster.serve(requests))
    with garbage.paused():
        env.run()
        cluster.close()


def _requests(deployment: Deployment, ledger: Ledger) -> Iterable[Request]:
    """The requests of the scenario's workload; *ledger* counts what had to be changed to read them."""
    scenario = deployment.scenario
    return scenario.workload.requests(scenario.seed, ledger)


def _in_processes(deployment: Deployment, on_end: Callable[[], None], jobs: int) -> Result:
    """Run the replicas of *deployment* in *jobs* processes; raises Coupled where they depend on each other."""
    _check_uncoupled(deployment)
    logs, remarks, run_some = [], (), partial(_part, deployment.scenario)
    with garbage.paused():
        for packed in run_in_processes(run_some, shares(deployment.serve.data_parallel_size, jobs), jobs):
            log, remarks = pickle.loads(packed)
            logs.append(log)
            for _ in (*log.of(Finished), *log.of(Rejected)):
                on_end()
        return _with_cap_remarks(deployment, _result(deployment, _merged(logs), remarks))


def _part(scenario: Scenario, here: Container[int]) -> bytes:
    """The pickled log of the replicas that are *here*, and the remarks on the workload."""
    deployment, ledger = Deployment.of(scenario), Ledger()
    result = play(deployment, _sessionless(_requests(deployment, ledger)), ledger=ledger, here=here)
    with garbage.paused():  # takes half as long
        return pickle.dumps((result.log, result.remarks), pickle.HIGHEST_PROTOCOL)


def _check_uncoupled(deployment: Deployment) -> None:
    """Raise Coupled where a replica of *deployment* depends on what another does; `_sessionless` checks sessions."""
    scenario = deployment.scenario
    if scenario.serve.data_parallel_size < 2:
        raise Coupled("data_parallel_size is 1")
    if deployment.shards[0].data > 1:
        raise Coupled("the replicas share the experts of their layers, and step together")
    if scenario.workload.max_concurrency:
        raise Coupled("with max_concurrency, requests wait until others have ended")
    if not getattr(plugin("cluster.routers", scenario.router), "blind", False):
        raise Coupled(f"router {scenario.router.name} looks at the replicas, or does not say that it is blind")


def _sessionless(requests: Iterable[Request]) -> Iterator[Request]:
    """*requests*, as long as none waits for another; raises Coupled at the first of a session."""
    for request in requests:
        if request.session:
            raise Coupled("turns of a session wait until those before them have ended")
        yield request


def shares(replicas: int, jobs: int) -> list[range]:
    """Which of the *replicas* each of *jobs* processes plays, or of fewer."""
    return [range(first, replicas, jobs) for first in range(min(replicas, jobs))]


def _merged(logs: Sequence[Log]) -> Log:
    """What happened in all *logs*; at one time, requests by their ids, engines by their numbers."""
    engines = sorted((built for log in logs for built in log.engines), key=lambda built: built.engine)
    return Log.joined(engines, logs)


def _result(deployment: Deployment, log: Log, remarks: Sequence[str]) -> Result:
    scenario = deployment.scenario
    return Result(log, labels_of(scenario), targets_of(scenario), scenario.to_toml(), remarks, deployment.rates)


def _with_cap_remarks(deployment: Deployment, result: Result) -> Result:
    """*result* with remarks on its power cap, if it has one."""
    if deployment.scenario.power.cap is not None:
        result.remarks = (*result.remarks, *power_cap.remarks(deployment, result.summary))
    return result


def labels_of(scenario: Scenario) -> dict[str, str | int | float | bool | None]:
    """What was run, as the summary names it."""
    return {"model_id": scenario.model, "gpu": scenario.gpu, "seed": scenario.seed,
            "max_concurrency": scenario.workload.max_concurrency}


def targets_of(scenario: Scenario) -> LatencyTargets:
    """The latency targets that goodput counts by."""
    slo = scenario.slo
    return LatencyTargets(ttft=slo.ttft, tpot=slo.tpot, e2el=slo.e2el)
