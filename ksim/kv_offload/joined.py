"""Several KV connectors of one engine; vLLM's MultiConnector (0.33, kv_connector/v1/multi_connector.py)."""

from collections.abc import Callable, Collection, Mapping, Sequence

import simpy
from attrs import define, evolve, field

from ksim.flow.kv_transfer import KvTransferParams
from ksim.flow.request import Request
from ksim.kv_offload.worker import OffloadWorker
from ksim.kv_transfer.endpoint import Endpoint
from ksim.kv_transfer.transfer import Transfer
from ksim.scheduling.connector import Connector, ConnectorOutput, Contents
from ksim.scheduling.copies import Load
from ksim.scheduling.decode_set import DecodeSet
from ksim.scheduling.job import Job
from ksim.scheduling.schedule import Schedule

__all__ = ["JoinedConnector", "JoinedWorker"]


@define(eq=False)
class JoinedConnector:
    """The scheduler's side: the first of `connectors` that can load anything for a job loads it, all of them store."""

    connectors: Sequence[Connector]
    _chosen: dict[Job, Connector] = field(factory=dict, init=False)

    @property
    def consumes(self) -> bool:
        return any(connector.consumes for connector in self.connectors)

    @property
    def recomputes(self) -> bool:
        return any(connector.recomputes for connector in self.connectors)

    def came(self, job: Job) -> None:
        for connector in self.connectors:
            connector.came(job)

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        answer: tuple[int, bool] = 0, False
        self._chosen.pop(job, None)
        for connector in self.connectors:
            tokens, asynchronous = connector.external_tokens(job, computed)
            if tokens is None:
                return None, True
            if tokens and not answer[0]:
                answer = tokens, asynchronous
                self._chosen[job] = connector
        return answer

    def begin(self, load: Load) -> None:
        chosen = self._chosen.pop(load.job, None)
        for connector in self.connectors:
            connector.begin(load if connector is chosen else evolve(load, tokens=0))

    def sends_early(self, job: Job) -> bool:
        return any(connector.sends_early(job) for connector in self.connectors)

    def holds(self, job: Job, complete: bool) -> bool:
        self._chosen.pop(job, None)
        held = [connector.holds(job, complete) for connector in self.connectors]
        return any(held)

    @property
    def copying(self) -> bool:
        return any(connector.copying for connector in self.connectors)

    @property
    def follows_decodes(self) -> bool:
        return any(connector.follows_decodes for connector in self.connectors)

    def schedule_made(self, schedule: Schedule, grown: Sequence[Job]) -> None:
        for connector in self.connectors:
            connector.schedule_made(schedule, grown)

    def take(self, numbers: Sequence[int]) -> None:
        for connector in self.connectors:
            connector.take(numbers)

    @property
    def contents(self) -> Contents:
        return {name: keys for connector in self.connectors for name, keys in connector.contents.items()}

    def tier_hits(self, request: Request, cached: int, contents: Contents | None = None) -> Mapping[str, int]:
        return next((hits for connector in self.connectors
                     if (hits := connector.tier_hits(request, cached, contents))), {})

    def quiet_steps(self, decodes: DecodeSet, step: int) -> int:
        return min(connector.quiet_steps(decodes, step) for connector in self.connectors)


@define(eq=False)
class JoinedWorker:
    """The workers' side: transfers to and from other engines through `endpoint`, copies by `offload`."""

    endpoint: Endpoint
    offload: OffloadWorker

    @property
    def wake(self) -> Callable[[], object]:
        return self.endpoint.wake

    @wake.setter
    def wake(self, wake: Callable[[], object]) -> None:
        self.endpoint.wake = self.offload.wake = wake

    def begin_turn(self, now: float) -> None:
        self.endpoint.begin_turn(now)
        self.offload.begin_turn(now)

    @property
    def may_start_flows(self) -> bool:
        return True  # the lanes that copies use carry what NICs send, too

    @property
    def awaiting(self) -> bool:
        return self.endpoint.awaiting or self.offload.awaiting

    @property
    def due(self) -> float:
        return min(self.endpoint.due, self.offload.due)

    def report(self, moment: float) -> ConnectorOutput | None:
        reports = [part for part in (self.endpoint.report(moment), self.offload.report(moment)) if part]
        if len(reports) < 2:
            return reports[0] if reports else None
        moved, copied = reports
        return evolve(moved, received=[*moved.received, *copied.received], copied=copied.copied)

    def hurry(self, schedule: Schedule, moment: float, computed: float | simpy.Event | None) -> simpy.Event | None:
        return self.offload.hurry(schedule, moment, computed)

    def launch(self, schedule: Schedule, scheduled: float, moment: float,
               computed: float | simpy.Event | None = None) -> None:
        self.offload.launch(schedule, scheduled, moment, computed)
        self.endpoint.launch(schedule, scheduled, moment, computed)

    def chunks_computed(self, schedule: Schedule, moment: float) -> None:
        self.endpoint.chunks_computed(schedule, moment)

    @property
    def expected(self) -> Collection[Transfer]:
        return self.endpoint.expected

    @property
    def waits_for_peers(self) -> bool:
        return self.endpoint.waits_for_peers or self.offload.waits_for_peers

    def expect(self, params: KvTransferParams, moment: float) -> None:
        self.endpoint.expect(params, moment)

    def finish(self, job: Job, moment: float) -> None:
        self.endpoint.finish(job, moment)
