"""A deployment: a scenario with every name looked up and every setting that it leaves open filled in."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from attrs import evolve, frozen

from ksim.compute.model import Model
from ksim.cost.overlap import Overlap
from ksim.cost.passes import Passes, Timer
from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.foundation.config import Choice
from ksim.foundation.errors import DoesNotFit
from ksim.foundation.plugins import plugin
from ksim.network.network import Network
from ksim.oracles.efficiency.drawn import DrawnOracle, deviation
from ksim.oracles.efficiency.scaled import ScaledOracle
from ksim.results.footprint import Rates
from ksim.simulation.adapters import check_asked, with_adapters
from ksim.simulation.cache_layout import CacheLayout
from ksim.simulation.connector_parts import with_offloading
from ksim.simulation.defaults import Defaults, fused
from ksim.simulation.drafters import check_drafter
from ksim.simulation.further_passes import passes_of
from ksim.simulation.graph_sizes import graphs
from ksim.simulation.hardware import beside, engine_of, gpu_of, host_of, network_of, rates_of, system_of
from ksim.simulation.models import model_of
from ksim.simulation.plugins import oracle_choice
from ksim.simulation.remarks import remarks
from ksim.simulation.routing import routing_of
from ksim.simulation.sampling import check_sampling
from ksim.simulation.scenario import Scenario
from ksim.simulation.sizing import check_step, kv_blocks, layout_of, memory, shards_of
from ksim.simulation.speculation import check
from ksim.specs.engine import EngineVersion
from ksim.specs.hardware import Gpu, System
from ksim.specs.host import Host
from ksim.specs.settings import EngineSettings
from ksim.specs.shard import Routing, Shard


@frozen
class Deployment:
    """What the engines of a scenario have in common.

    `scenario` has every setting filled in.  Where it `skips`, an engine may compute several steps ahead of the clock;
    the results are the same.
    """

    scenario: Scenario
    model: Model
    gpu: Gpu
    system: System
    network: Network
    oracle: Any
    host: Host
    version: EngineVersion
    routing: Routing = Routing()
    rates: Rates = Rates()
    skips: bool = True

    @classmethod
    def of(cls, scenario: Scenario) -> "Deployment":
        """Look up all that *scenario* names and derive the settings that it leaves open.

        No request of its workload is read.  Raises KsimError for a scenario that cannot be deployed.
        """
        model = model_of(scenario.model, scenario.serve.hf_overrides)
        system = system_of(scenario.gpu, scenario.system, scenario.nodes)
        gpu = gpu_of(scenario.gpu or system.gpu)
        version = engine_of(scenario.engine)
        serve = Defaults(with_offloading(scenario.serve), version, model, gpu).complete()
        check_drafter(model, serve)
        _check_gpus(serve, system)
        check(serve)
        model = with_adapters(model, serve, gpu, system)
        check_asked(scenario.workload, serve)
        check_sampling(scenario.workload, serve)
        network = network_of(system, (*fused(serve), *map(Choice, scenario.collectives)), gpu)
        oracle = oracle_choice(scenario.oracle, system.gpu)
        named = evolve(scenario.gpu, name=system.gpu) if isinstance(scenario.gpu, Choice) else system.gpu
        resolved = evolve(scenario, gpu=named, system=scenario.system or beside(gpu.system, system.gpu) or None,
                          serve=serve, oracle=oracle)
        scaled = _for_release(plugin("oracles", oracle), version)
        if scenario.kernel_errors is not None:
            scaled = DrawnOracle(scaled, scenario.kernel_errors)
            network.deviation = deviation(scenario.kernel_errors, "collectives")
        return cls(
            scenario=resolved, model=model, gpu=gpu, system=system, network=network, oracle=scaled,
            host=host_of(scenario.host), version=version, routing=routing_of(scenario.routing, model),
            rates=rates_of(scenario.energy, system))

    @property
    def serve(self) -> EngineSettings:
        """The engine's settings, complete."""
        return self.scenario.serve

    @property
    def remarks(self) -> tuple[str, ...]:
        """What users should know of the GPU, and of what is priced without measurements."""
        return remarks(self)

    @property
    def shards(self) -> list[Shard]:
        """One rank's share of the model in each pipeline stage."""
        return shards_of(self.model, self.serve, self.routing)

    @property
    def kv_blocks(self) -> int:
        """How many KV blocks each rank has; raises DoesNotFit where there are too few."""
        return kv_blocks(self.model, self.shards, self.gpu, self.serve, self.system)

    @cached_property
    def layout(self) -> CacheLayout:
        """How the layers of all stages share the KV blocks."""
        return layout_of([memory(self.model, shard, self.gpu, self.serve) for shard in self.shards], self.serve)

    def check_memory(self) -> None:
        """Raise DoesNotFit where the weights and the KV cache of one whole sequence do not fit into memory."""
        _ = self.kv_blocks

    def check_step(self, batch: Batch) -> None:
        """Raise DoesNotFit where a GPU cannot hold its weights and the KV cache of *batch*'s sequences."""
        check_step(self.model, self.shards, self.gpu, self.serve, self.system, batch)

    def groups(self, stage: int, first: int, firsts: Sequence[int] = ()) -> dict[str, tuple[int, ...]]:
        """The GPUs of each rank group of a pipeline stage.

        *first* is the first GPU of its engine; *firsts* are those of all engines of the data-parallel group, which by
        default lie one after the other from GPU 0 on.
        """
        serve = self.serve
        width = serve.tensor_parallel_size
        start = first + stage * width
        begins = firsts or range(0, serve.gpus * serve.data_parallel_size, serve.gpus)
        replicas = tuple(gpu + stage * width for gpu in begins)
        return {"tensor": tuple(range(start, start + width)), "pipeline": (start, start + width), "data": replicas,
                "expert": tuple(gpu + rank for gpu in replicas for rank in range(width))}

    def timers(self, first: int = 0, firsts: Sequence[int] = ()) -> list[Timer]:
        """A step timer for each pipeline stage of the engine whose first GPU is *first*; *firsts* are as of `groups`.
        """
        serve = self.serve
        captured = graphs(serve)
        overlap = Overlap(serve.overlap_stages, serve.overlap_sms) if serve.overlap_stages > 1 else None
        timers = [StepTimer(
            model=self.model, shard=shard, gpu=self.gpu, oracle=self.oracle, network=self.network,
            groups=self.groups(stage, first, firsts), graphs=captured, host=self.host, overlap=overlap)
                  for stage, shard in enumerate(self.shards)]
        for timer in timers[1:]:
            timers[0].share_with(timer)
        return [Passes(timer, further) if (further := passes_of(timer, serve)) else timer for timer in timers]


def _check_gpus(serve: EngineSettings, system: System) -> None:
    """Raise DoesNotFit where *system* has fewer GPUs than the replicas need."""
    needed = serve.gpus * serve.data_parallel_size
    if needed <= system.gpus:
        return
    advice = (f"set nodes to {-(-needed // system.gpus_per_node)} or more" if system.network else
              "name a system that has as many, or with a [network] between nodes (docs/plugins.md)")
    count = serve.data_parallel_size
    replicas = f"{count} replicas of {serve.gpus} need" if count > 1 else "one replica needs"
    raise DoesNotFit(f"{replicas} {needed} GPUs, and {system.name} has {system.gpus}; {advice}")


def _for_release(oracle: Any, version: EngineVersion) -> Any:
    """*oracle* with its times scaled to the kernels that *version* launches."""
    return ScaledOracle(oracle, version.paces, version.ceilings) if version.paces or version.ceilings else oracle
