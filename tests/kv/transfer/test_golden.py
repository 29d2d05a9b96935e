"""Recorded schedules of vLLM with a KV connector come out of real transfers, too.

The recordings' loads and sends take so many turns.  Here a turn is a second, links are free, and a load starts up for
as long as it takes in the recording: with a start-up of no time, a load takes none.
"""

from math import inf, nextafter
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from ksim.engine.loop_times import Horizon
from ksim.flow.events import KvTransferParams
from ksim.flow.log import Log
from ksim.kv.transfer.connectors.engines import Nixl
from ksim.kv.transfer.endpoint import Endpoint
from ksim.kv.transfer.transfer import KvLayout, KvPlacement, KvTransfer, LayerShare, TransferNetwork
from ksim.network.flows import Flows
from ksim.network.links import Links
from ksim.network.routes import Machines
from ksim.scenario.hardware import gpu_of, system_of
from ksim.scheduling.connector import Load
from ksim.scheduling.job import Job, Schedule
from ksim.validation import replay, schedules
from ksim.validation.case_connector import CaseConnector, Report
from ksim.validation.cases import KEPT, find, read

GOLDEN = Path(__file__).parents[2] / "golden" / "transfers"
SHARED = Path(__file__).parents[4] / "shared" / "data" / "vllm_golden_kv"
#: Those whose KV another engine has.
FILES = [file for file in find(SHARED if SHARED.exists() else GOLDEN)
         if file.name.startswith(("decode_", "prefill_"))]


@define(eq=False, slots=False)
class TwoEngines:
    """Two engines on one GPU: the one of the case, and one that sends to it and takes from it."""

    block_tokens: int
    recomputes: bool
    env: Horizon = field(factory=Horizon)
    log: Log = field(factory=Log)

    def __attrs_post_init__(self) -> None:
        links = Links.of([Machines(system_of("h200", None, 1), gpu_of("h200"))])
        flows = Flows(self.env, links)
        placement = KvPlacement([0], KvLayout(1, (LayerShare(0, 1.0),)))
        self.shared = {"env": self.env, "links": links, "flows": flows, "log": self.log}
        network = self.network(0)
        self.own, self.other = (Endpoint(number, placement, self.block_tokens, network, recomputes=self.recomputes)
                                for number in (0, 1))

    def network(self, start: float) -> TransferNetwork:
        return TransferNetwork(**self.shared, connector=Nixl(start=float(start), kv_lease_duration=1e9))

    def pass_to(self, moment: float) -> None:
        """Let all happen that is due at *moment* or before."""
        while self.env.peek() <= moment:
            self.env.step()
        if self.env.now < moment:
            self.env.run(until=moment)


@define(eq=False)
class EndpointConnector(CaseConnector):
    """Answers as the endpoint of an engine does."""

    engines: Any = field(init=False)

    def transfer(self, job: Job) -> KvTransfer | None:
        request = self.requests[job]
        if job.kv_transfer_params is None and (request.remote is not None or request.send is not KEPT):
            here = request.remote is not None
            ends = (self.engines.other, self.engines.own) if here else (self.engines.own, self.engines.other)
            network = self.engines.network(request.remote.recv if here else 0)
            transfer = KvTransfer(network, *ends, job.request)
            transfer.blocks_lost = here and request.remote.bad is not None
            transfer.job = Job.of(job.request, 0, self.engines.block_tokens) if here else job
            job.kv_transfer_params = KvTransferParams(not here, here, transfer)
        return job.kv_transfer_params and job.kv_transfer_params.transfer

    def external_tokens(self, job: Job, computed: int) -> tuple[int | None, bool]:
        self.transfer(job)
        tokens, asynchronous = self.engines.own.external_tokens(job, computed)
        return tokens, asynchronous

    def begin(self, load: Load) -> None:
        self.engines.own.begin(load)
        self.begun.append(load)

    def holds(self, job: Job, complete: bool) -> bool:
        self.transfer(job)
        return bool(self.engines.own.holds(job, complete))


@define(eq=False)
class EndpointWorkers:
    """What the engine does for the endpoint in each turn; sends end when the recording says."""

    connector: EndpointConnector
    block_tokens: int
    begun: list[Job] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.connector.engines = TwoEngines(self.block_tokens, self.connector.recomputes)

    @property
    def pending(self) -> bool:
        return self.connector.engines.env.peek() < inf

    def see(self, schedule: Schedule, step: int) -> list[Report]:
        engines = self.connector.engines
        engines.pass_to(nextafter(step, -inf))
        engines.own.begin_turn(step)
        engines.own.launch(schedule, step, step)
        self.begun += [load.job for load in schedule.loads]
        for job in schedule.sends:
            steps = self.connector.requests[job].send
            lasts = self.connector.settings.lease_steps if steps is None else steps
            engines.own.network.at(step + lasts, self.connector.transfer(job).release_blocks)
        engines.pass_to(step)
        found = engines.own.report(step)
        if found is None:
            return []
        received = sorted(found.received, key=self.begun.index)  # those of one moment come in the order of a recording
        return [*(Report(step, job, tuple(found.failed.get(job, ())), received=True) for job in received),
                *(Report(step, job, sent=True) for job in found.sent)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".")[0])
def test_transfers_give_the_recorded_schedules(file, monkeypatch):
    monkeypatch.setattr(replay, "CaseConnector", EndpointConnector)
    monkeypatch.setattr(replay, "CaseWorkers", EndpointWorkers)
    assert schedules.compare(read(file)).difference is None
