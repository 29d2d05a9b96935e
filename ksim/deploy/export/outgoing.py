"""A scenario on its way out: its pools with the lines that start their engines, and what lines do not say."""

from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from ksim.deploy.export.vllm_line import VllmLine, served_name
from ksim.foundation.config import Choice, plain
from ksim.foundation.errors import ConfigError
from ksim.simulation.deployment import Deployment
from ksim.simulation.fleet import Fleet
from ksim.simulation.hardware import system_of
from ksim.simulation.pool import Pool
from ksim.simulation.scenario import Scenario
from ksim.specs.kv_transfer import KvTransferConfig
from ksim.specs.settings import EngineSettings

__all__ = ["Outgoing", "OutgoingPool"]

#: GPUs of one machine, of systems whose node is a rack: a pod stays on a machine.
_MACHINES = {"gb200": 4, "gb300": 4}
_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}
#: What a deployment does not say, and a scenario does.
_ASIDE = ("oracle", "kernel_errors", "routing", "collectives", "host", "slo", "power", "energy", "detail", "signals",
          "flow_control")


@frozen
class OutgoingPool:
    """Engines of one kind: how many, on what, and the line that starts one."""

    name: str
    role: str
    replicas: int
    gpu: str
    """The catalogue's name of the GPU."""
    engine: str
    settings: EngineSettings
    line: VllmLine
    machine: int
    """GPUs of a machine."""

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.settings.gpus * self.settings.data_parallel_size

    @property
    def machines(self) -> int:
        """The machines of a replica: as few as hold it in equal parts."""
        fewest = -(-self.gpus // self.machine)
        return next(count for count in range(fewest, self.gpus + 1) if self.gpus % count == 0)


@frozen
class Outgoing:
    """The pools of a scenario; one without a name where the scenario has none."""

    model: str
    pools: tuple[OutgoingPool, ...]
    router: Choice | None = None
    pair_router: Choice | None = None
    missing: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, scenario: Scenario, derived: bool = False) -> "Outgoing":
        """All that is to be written of *scenario*, with the settings that engines derive if *derived*.

        Raises KsimError for a scenario that cannot be deployed, or whose engine is not vLLM.
        """
        fleet = Fleet.of(scenario)
        pools = tuple(_pool(scenario, pool, derived, fleet.splits) for pool in fleet.pools)
        several = sum(pool.replicas for pool in pools) > 1
        missing = [f"{part.name or 'engine'}: {text}" for part in pools for text in part.line.missing]
        return cls(served_name(scenario.model), pools, scenario.router if several and not fleet.splits else None,
                   (scenario.pair_router or Choice("each_side")) if fleet.splits else None,
                   (*missing, *_aside(scenario)))


def _pool(scenario: Scenario, pool: Pool, derived: bool, splits: bool) -> OutgoingPool:
    own = scenario.of_pool(pool.name) if pool.name else scenario
    if not own.engine.startswith("vllm"):
        raise ConfigError(f"pools.{pool.name}.engine" if pool.name else "engine",
                          f"is {own.engine!r}; launch lines are written for vLLM alone: set an engine such as vllm-0.33"
                          " to see its line")
    settings = _by_checkpoint(own, pool.deployment.serve if derived else own.serve)
    if splits:
        settings = evolve(settings, kv_transfer_config=_transfer(pool, settings))
    gpu = str(pool.deployment.scenario.gpu)
    machine = _MACHINES.get(gpu, system_of(own.gpu, own.system).gpus_per_node)
    return OutgoingPool(pool.name, pool.role, pool.replicas, gpu, engine=own.engine, settings=settings,
                        line=VllmLine.of(own.model, settings), machine=machine)


def _by_checkpoint(own: Scenario, settings: EngineSettings) -> EngineSettings:
    """*settings* without the formats of weights that the checkpoint says anyway, such as those that a run filled in."""
    if settings.quantization == "auto" and settings.unquantized is None:
        return settings
    plain_formats = evolve(settings, quantization="auto", unquantized=None)
    said = Deployment.of(evolve(own, serve=plain_formats)).serve
    same = (said.quantization, said.unquantized or ()) == (settings.quantization, settings.unquantized or ())
    return plain_formats if same else settings


def _transfer(pool: Pool, settings: EngineSettings) -> KvTransferConfig:
    """How the engines of *pool* send KV, in full: vLLM derives none of it."""
    known = settings.kv_transfer_config or KvTransferConfig()
    full = pool.deployment.serve.kv_transfer_config
    connector = known.kv_connector or (full.kv_connector if full is not None else None) or "NixlConnector"
    return evolve(known, kv_connector=connector, kv_role=known.kv_role or _ROLES[pool.role])


def _aside(scenario: Scenario) -> list[str]:
    """What *scenario* sets that no deployment says."""
    table: Mapping[str, Any] = plain(scenario)
    usual = plain(Scenario.of({"model": scenario.model, "gpu": "h100", "workload": plain(scenario.workload)}))
    keys = [key for key in _ASIDE if table.get(key) != usual.get(key)]
    return [f"{', '.join(keys)}: part of the scenario, not of a deployment"] if keys else []
