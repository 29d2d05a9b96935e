"""Run a scenario to its end, in memory or, where it is too long for that, with its rows written while it runs.

Replicas that nothing couples may run in processes of their own.
"""

import json
import pickle
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import simpy
from attrs import Factory, define, evolve, field, frozen

from ksim.cluster.cluster import Clients
from ksim.cluster.signals import signals_of
from ksim.engine.loop_times import Horizon
from ksim.flow.events import Finished, Rejected
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation import process
from ksim.foundation.errors import KsimError
from ksim.results.measured import Refusals, judged
from ksim.results.numbers import LatencyTargets, Summary
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.simulation.assembly import build, router_of
from ksim.simulation.fleet import Fleet
from ksim.simulation.pool import EnginePool
from ksim.simulation.processes import run_in_processes
from ksim.specs.settings import Slo
from ksim.views.result import Result
from ksim.workload.rows import Ledger

if TYPE_CHECKING:
    from ksim.results.streaming import ParquetLog


class Coupled(KsimError):
    """Replicas have to be played together, for the reason given."""


def simulate(scenario: Scenario | Deployment | Fleet, on_end: Callable[[], None] = lambda: None,
             jobs: int = 1) -> Result:
    """Build everything that *scenario* names, run it until the last request has ended, and return what happened.

    `on_end` is called for each request that ends.  Replicas that do not depend on each other run in *jobs* processes;
    the result is the same.  Where they do depend on each other, a remark of the result says why.  A Deployment or a
    Fleet is a scenario that has been looked up already.  Raises KsimError for a scenario that cannot be built or a
    workload that cannot be read.
    """
    fleet = Fleet.of(scenario)
    ledger, remarks = Ledger(), []
    if jobs > 1:
        try:
            return _in_processes(fleet, on_end, jobs)
        except Coupled as reason:
            remarks.append(f"ran in one process, not in {jobs}: {reason}")
    result = play(fleet, requests_of(fleet, ledger), on_end, ledger)
    result.remarks = (*remarks, *result.remarks)
    return result


def try_to_build(scenario: Scenario) -> None:
    """Build everything that *scenario* names, and read its first request; raises the KsimError of what cannot be."""
    build(Fleet.of(scenario), Horizon(), Log(), lambda: None)
    next(iter(scenario.workload.requests(scenario.seed)), None)


def play(fleet: Fleet | Deployment, requests: Iterable[Request], on_end: Callable[[], None] = lambda: None,
         ledger: Ledger | None = None, here: Container[int] | None = None,
         begin: "Callable[[Running], None]" = lambda running: None) -> Result:
    """Serve *requests*, ordered by arrival, with the engines of *fleet*, or with those that are *here* alone.

    Of the scenario's own workload only `max_concurrency` counts.  `begin` is called as by `serve`.
    """
    log, fleet = Log(), Fleet.of(fleet)
    serve(fleet, requests, log, on_end, here, begin)
    result = result_of(fleet, log, (*(ledger.remarks() if ledger else ()), *fleet.remarks))
    return _with_run_remarks(fleet, result) if here is None else result


def serve(fleet: Fleet, requests: Iterable[Request], log: Log, on_end: Callable[[], None],
          here: Container[int] | None = None,
          begin: "Callable[[Running], None]" = lambda running: None) -> Clients:
    """Serve *requests* as `play` does, and record what happens in *log*, which may drop what it has written.

    `begin` is called before the first event, so that a process of the caller's can look at the run while it goes on.
    Returns the cluster as it is at the end.
    """
    env = Horizon()
    fleet.check_run()
    cluster = build(fleet, env, log, on_end, here)
    running = Running(fleet, cluster, env.process(cluster.serve(requests)))
    for feature in fleet.features:
        feature.begin(running)
    begin(running)
    with process.paused():
        env.run()
        cluster.close()
        cluster.stop()
    return cluster


@frozen
class Running:
    """A run of *fleet* that goes on, while its requests are *coming*."""

    fleet: Fleet
    cluster: Clients
    coming: simpy.Event

    @property
    def env(self) -> Horizon:
        """Where its processes run."""
        return self.cluster.env

    @property
    def pools(self) -> Sequence[EnginePool]:
        """Its pools."""
        return self.fleet.pools

    @property
    def log(self) -> Log:
        """What has been written down by now; engines may write a few steps later than the cluster."""
        return self.cluster.log

    @property
    def scenario(self) -> Scenario:
        """What runs."""
        return self.fleet.scenario

    @property
    def over(self) -> bool:
        """Whether all requests have come and ended."""
        return (self.coming.processed and not any(getattr(engine, "outstanding", 0) for engine in self.cluster.engines)
                and not self.cluster.busy)

    def result(self) -> Result:
        """The result of what has happened by now; engines write down the rest of it first."""
        self.cluster.close()
        return result_of(self.fleet, self.log)


def requests_of(fleet: Fleet, ledger: Ledger) -> Iterator[Request]:
    """The requests of the scenario's workload; *ledger* says what had to be changed to read them, and of how many the
    engines cut the output."""
    scenario, cut = fleet.scenario, 0
    limits = {model: max(pool.deployment.serve.max_model_len or 0 for pool in pools)
              for model, pools in fleet.models.items()}
    longest = max(limits.values())
    for request in _for_models(fleet, scenario.workload.requests(scenario.seed, ledger)):
        most = limits.get(request.model, longest)
        cut += request.prompt < most < request.prompt + request.output
        yield request
    if cut:
        said = " or ".join(map(str, dict.fromkeys(limits.values())))
        ledger.notes.append(f"requests whose output max_model_len = {said} cuts short: {cut:,}")


def _for_models(fleet: Fleet, requests: Iterator[Request]) -> Iterator[Request]:
    """*requests* that all name their models where there are several: KV of one is of no use to another."""
    return requests if len(fleet.models) == 1 else map(partial(_for_model, fleet.scenario.model), requests)


def _for_model(usual: str, request: Request) -> Request:
    """*request* for its model, or for the *usual* one."""
    model, chunks = request.model or usual, request.chunks
    return evolve(request, model=model, chunks=((model, chunks[0]), *chunks[1:]) if chunks else ())


def _in_processes(fleet: Fleet, on_end: Callable[[], None], jobs: int) -> Result:
    """Run the engines of *fleet* in *jobs* processes; raises Coupled where they depend on each other."""
    alone = independent(fleet)
    logs, remarks, run_some = [], (), partial(_part, fleet.scenario)
    with process.paused():
        for packed in run_in_processes(run_some, shares(alone, jobs), jobs):
            log, remarks = pickle.loads(packed)
            logs.append(log)
            for _ in (*log.of(Finished), *log.of(Rejected)):
                on_end()
        return _with_run_remarks(fleet, result_of(fleet, _merged(logs), remarks))


def _part(scenario: Scenario, here: Container[int]) -> bytes:
    """The pickled log of the engines that are *here*, and the remarks on the workload."""
    fleet, ledger = Fleet.of(scenario), Ledger()
    result = play(fleet, _sessionless(requests_of(fleet, ledger)), ledger=ledger, here=here)
    with process.paused():  # takes half as long
        return pickle.dumps((result.log, result.remarks), pickle.HIGHEST_PROTOCOL)


def independent(fleet: Fleet) -> list[range]:
    """The numbers of the engines of *fleet*, together those that share experts.

    Raises Coupled where an engine depends on what another does; `_sessionless` checks sessions.
    """
    scenario = fleet.scenario
    if fleet.engines < 2:
        raise Coupled("there is one engine" if scenario.pools else "data_parallel_size is 1")
    alone = [members for pool in fleet.pools for members in pool.coupled]
    if len(alone) < 2:
        raise Coupled("the replicas share the experts of their layers, and step together")
    for feature in fleet.features:
        if reason := feature.coupling(fleet.pools):
            raise Coupled(reason)
    if scenario.workload.max_concurrency:
        raise Coupled("with max_concurrency, requests wait until others have ended")
    if scenario.flow_control is not None and scenario.flow_control.name != "none":
        raise Coupled(f"flow_control {scenario.flow_control.name} looks at all replicas")
    if signals := signals_of(router_of(fleet)):
        raise Coupled(f"router {scenario.router.name} goes by {', '.join(signals)} of the replicas")
    return alone


def _sessionless(requests: Iterable[Request]) -> Iterator[Request]:
    """*requests*, as long as none waits for another; raises Coupled at the first of a session."""
    for request in requests:
        if request.session:
            raise Coupled("turns of a session wait until those before them have ended")
        yield request


def shares(alone: Sequence[Sequence[int]], jobs: int) -> list[list[int]]:
    """Which engines each of *jobs* processes plays, or of fewer; those of each of *alone* stay together."""
    return [[number for members in alone[first::jobs] for number in members] for first in range(min(len(alone), jobs))]


def _merged(logs: Sequence[Log]) -> Log:
    """What happened in all *logs*; at one time, requests by their ids, engines by their numbers."""
    engines = sorted((built for log in logs for built in log.engines), key=lambda built: built.engine)
    return Log.joined(engines, logs)


def result_of(fleet: Fleet, log: Log, remarks: Sequence[str] = ()) -> Result:
    """The result of *fleet*'s run, as far as it is in *log*."""
    scenario = fleet.scenario
    return Result(log, labels_of(fleet), targets_of(scenario), scenario.to_toml(), remarks, fleet.rates,
                  fleet.pool_rates)


def _with_run_remarks(fleet: Fleet, result: Result) -> Result:
    """*result* with what features have to say of it."""
    result.remarks = (*result.remarks, *_run_remarks(fleet, lambda: result.summary))
    return result


def _run_remarks(fleet: Fleet, summary: Callable[[], Summary]) -> Iterator[str]:
    return (remark for feature in fleet.features for remark in feature.run_remarks(fleet.pools, summary))


def labels_of(fleet: Fleet) -> dict[str, str | int | float | bool | None]:
    """What was run, as the summary names it."""
    scenario = fleet.scenario
    return {"model_id": ", ".join(fleet.models), "gpu": fleet.gpu_names, "seed": scenario.seed,
            "max_concurrency": scenario.workload.max_concurrency}


def targets_of(scenario: Scenario) -> LatencyTargets:
    """The latency targets that goodput counts by, and those of workloads of a mix that have their own."""
    own = {name: _targets(part.slo) for name, part in scenario.workload.mix.items() if part.slo is not None}
    return evolve(_targets(scenario.slo), workloads=own)


def _targets(slo: Slo) -> LatencyTargets:
    return LatencyTargets(ttft=slo.ttft, tpot=slo.tpot, e2el=slo.e2el)


@frozen
class Streamed:
    """What is left of a streamed run: its summary and the directory of its files.

    `remarks` tell what users should know of the workload, the GPU and the power cap; `refusals` why requests were
    rejected.
    """

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
        from ksim.views.text import vllm_block

        return vllm_block(self.summary)


def stream(scenario: Scenario | Deployment | Fleet, directory: Path | str,
           on_end: Callable[[], None] = lambda: None) -> Streamed:
    """Run *scenario* as `simulate` does, and write requests.parquet, steps.parquet, summary.json and scenario.toml.

    Only requests in flight are held in memory.  docs/glossary.md lists what such a run does not report.  An earlier run
    in *directory* is replaced.  Raises ConfigError where the directory cannot be written, and what `simulate` raises.
    """
    fleet, ledger = Fleet.of(scenario), Ledger()
    return stream_requests(fleet, requests_of(fleet, ledger), directory, on_end, ledger)


def stream_requests(fleet: Fleet | Deployment, requests: Iterable[Request], directory: Path | str,
                    on_end: Callable[[], None] = lambda: None, ledger: Ledger | None = None) -> Streamed:
    """Run *fleet* as `stream` does, with these *requests*, ordered by arrival, as its workload."""
    fleet = Fleet.of(fleet)
    with writing(fleet.scenario, directory) as written:
        serve(fleet, requests, written.sink, on_end)
        written.end(fleet)
    remarks = (*(ledger.remarks() if ledger else ()), *fleet.remarks, *_run_remarks(fleet, lambda: written.summary))
    return Streamed(written.summary, written.target, remarks, written.sink.refusals)


@define(eq=False)
class Written:
    """A run whose rows `sink` writes to `directory`, which becomes `target` once it has ended."""

    directory: Path
    target: Path
    sink: "ParquetLog"
    summary: Summary = field(factory=dict, init=False)

    def end(self, fleet: Fleet) -> None:
        """Write the summary of what *fleet* did, and its scenario."""
        scenario = fleet.scenario
        self.summary = judged(self.sink.summary(), labels_of(fleet), targets_of(scenario), fleet.rates,
                              fleet.pool_rates)
        (self.directory / "scenario.toml").write_text(scenario.to_toml(), encoding="utf-8")
        text = json.dumps(self.summary, indent=2, allow_nan=False, ensure_ascii=False)
        (self.directory / "summary.json").write_text(text + "\n", encoding="utf-8")


@contextmanager
def writing(scenario: Scenario, directory: Path | str) -> Iterator[Written]:
    """Write the run of *scenario* that the caller makes to *directory*, whole or not at all."""
    from ksim.results.streaming import ParquetLog  # most runs are kept whole
    from ksim.views import run_directory

    target = Path(directory).resolve()
    with run_directory.replacing(target) as new, ParquetLog(new, targets_of(scenario)) as sink:
        yield Written(new, target, sink)
