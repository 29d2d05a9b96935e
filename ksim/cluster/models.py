"""A fleet of several models: each has a cluster of its own, and requests go to that of their model.

As behind Kubernetes' Gateway API, where the body of a request says to which InferencePool it goes, and each pool has an
endpoint picker: routers, gateways and their queues see the engines and the requests of one model alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import simpy
from attrs import define, field

from ksim.cluster.cluster import Clients, Cluster, RemoteReplica
from ksim.engine.engine import Engine
from ksim.engine.loop_times import Horizon
from ksim.flow.events import Arrived, Rejected
from ksim.flow.log import Log
from ksim.flow.request import Request

__all__ = ["ClusterOfModels"]


@define(eq=False)
class ClusterOfModels(Clients):
    """The `clusters` of models by name, with all `engines` by their numbers; requests that name none are for `usual`.

    `prepares` has what makes of a request what a model sees, for models that need that.  A request for a model that is
    not served is rejected.
    """

    env: Horizon
    engines: Sequence[Engine | RemoteReplica]
    log: Log
    clusters: Mapping[str, Cluster]
    usual: str
    max_concurrency: int | None = None
    on_end: Callable[[], None] = lambda: None
    prepares: Mapping[str, Callable[[Request], Request]] = field(factory=dict)
    prepare: Callable[[Request], Request] | None = field(default=None, init=False)
    _slots: Any = field(init=False)
    _sessions: dict[str, simpy.Event] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = simpy.Resource(self.env, self.max_concurrency) if self.max_concurrency else None
        self.prepare = self._prepared if self.prepares else None

    def _prepared(self, request: Request) -> Request:
        prepare = self.prepares.get(request.model or self.usual)
        return prepare(request) if prepare else request

    @property
    def parts(self) -> Sequence[Cluster]:
        return [*self.clusters.values()]

    def send(self, request: Request, done: Callable[[], object], timely: bool = True) -> None:
        model = request.model or self.usual
        if model in self.clusters:
            self.clusters[model].send(request, done, timely)
            return
        if isinstance(self.engines[0], Engine):  # of several processes, one writes it down
            self.log.add(Arrived(self.env.now, request))
            self.log.add(Rejected(self.env.now, request.id, f"no pool serves its model {model!r}; there are"
                                                            f" {', '.join(self.clusters)}"))
        done()

    def abort(self, request: int, done: Callable[[], object] = lambda: None) -> None:
        for cluster in self.clusters.values():
            cluster.abort(request, done)
