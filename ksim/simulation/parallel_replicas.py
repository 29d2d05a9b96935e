"""Replicas that nothing couples: which those are, who plays which of them, and the events of all in one log."""

from collections.abc import Iterable, Iterator, Sequence

from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation.errors import KsimError
from ksim.simulation.deployment import Deployment
from ksim.simulation.plugins import plugin


class Coupled(KsimError):
    """Replicas have to be played together, for the reason given."""


def check(deployment: Deployment) -> None:
    """Raise Coupled where a replica of *deployment* depends on what another does; `alone` checks sessions."""
    scenario = deployment.scenario
    if scenario.serve.data_parallel_size < 2:
        raise Coupled("data_parallel_size is 1")
    if deployment.shards[0].data > 1:
        raise Coupled("the replicas share the experts of their layers, and step together")
    if scenario.workload.max_concurrency:
        raise Coupled("with max_concurrency, requests wait until others have ended")
    if not getattr(plugin("cluster.routers", scenario.router), "blind", False):
        raise Coupled(f"router {scenario.router.name} looks at the replicas, or does not say that it is blind")


def alone(requests: Iterable[Request]) -> Iterator[Request]:
    """*requests*, as long as none waits for another; raises Coupled at the first of a session."""
    for request in requests:
        if request.session:
            raise Coupled("turns of a session wait until those before them have ended")
        yield request


def shares(replicas: int, jobs: int) -> list[range]:
    """Which of the *replicas* each of *jobs* processes plays, or of fewer."""
    return [range(first, replicas, jobs) for first in range(min(replicas, jobs))]


def merged(logs: Sequence[Log]) -> Log:
    """What happened in all *logs*; at one time, requests by their ids, engines by their numbers."""
    engines = sorted((built for log in logs for built in log.engines), key=lambda built: built.engine)
    return Log.joined(engines, logs)
