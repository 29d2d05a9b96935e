"""`ksim export`: a scenario as `Outgoing` pools and launch lines, and what the writers of all forms share.

Writers share YAML with comments on what a form cannot say, the parts of pods, and the router as llm-d's
EndpointPickerConfig.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml
from attrs import evolve, field, frozen

from ksim.cluster.routers.llm_d import BASELINE
from ksim.deploy.manifests.fields import gpu_labels
from ksim.deploy.sglang_line import SglangLine
from ksim.deploy.vllm_line import VllmLine, served_name
from ksim.foundation import catalog
from ksim.foundation.config import Choice, plain
from ksim.foundation.errors import ConfigError, DataError
from ksim.scenario.defaults import Deployment
from ksim.scenario.hardware import system_of
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from ksim.simulation.pool import EnginePool
from ksim.specs.configs import KvTransferConfig
from ksim.specs.pools import Lifecycle
from ksim.specs.settings import EngineSettings

__all__ = ["comments", "documents", "Outgoing", "OutgoingPool", "exported", "PORT", "PRODUCT", "app", "env", "image",
           "label", "mounts", "name_of", "nodes_flags", "probes", "product", "unlabelled", "volumes", "picker_config",
           "FOLDER"]


def comments(missing: Sequence[str]) -> str:
    """Comment lines that list what is *missing*; none if nothing is."""
    if not missing:
        return ""
    lines = ["Not in here:"]
    for text in missing:
        first, *more = wrap(text, 112, break_long_words=False, break_on_hyphens=False)
        lines += [f"- {first}", *(f"  {line}" for line in more)]
    return "".join(f"# {line}\n" for line in lines)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes lists indented, texts of several lines as blocks, and no aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def documents(tables: Iterable[Mapping[str, Any]]) -> str:
    """*tables* as the documents of a YAML file."""
    return "---\n".join(yaml.dump(dict(table), Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=True)
                        for table in tables)


#: GPUs of one machine, of systems whose node is a rack: a pod stays on a machine.
_MACHINES = {"gb200": 4, "gb300": 4}
_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}
#: What a deployment does not say, and a scenario does.
_ASIDE = ("oracle", "kernel_errors", "routing", "collectives", "host", "slo", "power", "energy", "detail", "signals",
          "flow_control", "drains")


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
    line: VllmLine | SglangLine
    machine: int
    """GPUs of a machine."""
    autoscaler: Choice | None = None
    most: int = 1
    """The most replicas that it may have."""
    lifecycle: Lifecycle = Lifecycle()
    warm: int = 0
    """The replicas of its warm pool."""

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

        Raises KsimError for a scenario that cannot be deployed, whose engine is neither vLLM nor SGLang, or whose pools
        serve several models.
        """
        fleet = Fleet.of(scenario)
        if len(fleet.models) > 1:
            raise ConfigError("pools", f"serve {', '.join(fleet.models)}, and a deployment has one model; write the"
                                       " pools of each model from a scenario of their own")
        pools = tuple(_pool(scenario, pool, derived, fleet.splits) for pool in fleet.pools)
        several = sum(pool.most for pool in pools) > 1
        missing = [f"{part.name or 'engine'}: {text}" for part in pools for text in part.line.missing]
        return cls(served_name(fleet.pools[0].model), pools, scenario.router if several and not fleet.splits else None,
                   (scenario.pair_router or Choice("each_side")) if fleet.splits else None,
                   (*missing, *_aside(scenario)))


def _pool(scenario: Scenario, pool: EnginePool, derived: bool, splits: bool) -> OutgoingPool:
    own = scenario.of_pool(pool.name) if pool.name else scenario
    if not own.engine.startswith(("vllm", "sglang")):
        raise ConfigError(f"pools.{pool.name}.engine" if pool.name else "engine",
                          f"is {own.engine!r}; launch lines are written for vLLM and SGLang: set an engine such as"
                          " vllm-0.33 to see its line")
    settings = _by_checkpoint(own, pool.deployment.serve if derived else own.serve)
    if splits:
        settings = evolve(settings, kv_transfer_config=_transfer(pool, settings))
    gpu = str(pool.deployment.scenario.gpu)
    line: type[VllmLine] | type[SglangLine] = VllmLine if own.engine.startswith("vllm") else SglangLine
    machine = _MACHINES.get(gpu, system_of(own.gpu, own.system).gpus_per_node)
    scaler = scenario.autoscaler_of(pool.name) if pool.name else None
    replicas = scenario.pools[pool.name].replicas if scaler is not None else pool.replicas
    return OutgoingPool(pool.name, pool.role, replicas, gpu, engine=own.engine, settings=settings,
                        line=line.of(own.model, settings), machine=machine, autoscaler=scaler, most=pool.replicas,
                        lifecycle=scenario.lifecycle_of(pool.name) if pool.name else Lifecycle(),
                        warm=scenario.pools[pool.name].warm if pool.name else 0)


def _by_checkpoint(own: Scenario, settings: EngineSettings) -> EngineSettings:
    """*settings* without the formats of weights that the checkpoint says anyway, such as those that a run filled in."""
    if settings.quantization == "auto" and settings.unquantized is None:
        return settings
    plain_formats = evolve(settings, quantization="auto", unquantized=None)
    said = Deployment.of(evolve(own, serve=plain_formats)).serve
    same = (said.quantization, said.unquantized or ()) == (settings.quantization, settings.unquantized or ())
    return plain_formats if same else settings


def _transfer(pool: EnginePool, settings: EngineSettings) -> KvTransferConfig:
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


def unscaled(outgoing: Outgoing, written: Sequence[str] = ()) -> Iterator[str]:
    """What a form with autoscalers of those *written* does not say of the sizes of pools, and of how replicas end."""
    for pool in outgoing.pools:
        if pool.autoscaler is not None and pool.autoscaler.name not in written:
            yield f"{pool.name}: autoscaler = {pool.autoscaler.name!r}; replicas are those at the start"
        if pool.warm:
            yield f"{pool.name}: warm_pool, of replicas that sleep; they start anew"
        if pool.lifecycle != Lifecycle() and not written:
            yield f"{pool.name}: lifecycle, how replicas end"
        if pool.autoscaler is not None and written and pool.lifecycle.termination_grace_period is None:
            yield (f"{pool.name}: replicas that wait for their last request; Kubernetes cuts it off 30 s after they are"
                   " to go")
        if pool.lifecycle.disruption_budget is not None and written and pool.machines > 1:
            yield f"{pool.name}: lifecycle.disruption_budget is of replicas, and each is several pods here"
        if pool.lifecycle.migration_limit and written:
            yield f"{pool.name}: lifecycle.migration_limit is Dynamo's"


def check_vllm(outgoing: Outgoing, form: str) -> None:
    """Raise ConfigError where *form*, which has vLLM's containers, would have those of another engine."""
    for pool in outgoing.pools:
        if not pool.engine.startswith("vllm"):
            raise ConfigError(f"pools.{pool.name}.engine" if pool.name else "engine",
                              f"is {pool.engine!r}, and {form} is written for vLLM alone; write its launch line with"
                              " --to vllm, or set an engine such as vllm-0.33")


FOLDER = "deploy.writers"


def launch_lines(scenario: Scenario) -> str:
    """The lines that start the engines of *scenario*; raises KsimError where no flags say it."""
    texts: dict[str, str] = catalog.find(FOLDER, "vllm")().write(Outgoing.of(scenario))
    return next(iter(texts.values()))


def exported(path: Path, form: str, derived: bool = False) -> dict[str, str]:
    """The texts of *form* for the scenario at *path*, by the ending of their file's name; the first has none.

    Raises KsimError for a scenario that the form cannot say.
    """
    texts: dict[str, str] = catalog.find(FOLDER, form)().write(Outgoing.of(Scenario.read(path), derived))
    return texts


PORT = 8000
PRODUCT = "nvidia.com/gpu.product"


def image(pool: OutgoingPool) -> str:
    """vLLM's image of the pool's release."""
    release = re.match(r"vllm-(\d+(?:\.\d+)*)", pool.engine)
    number = release[1] if release else "latest"
    return f"vllm/vllm-openai:v{number}" + (".0" if number.count(".") == 1 else "")


def label(text: str) -> str:
    """*text* as the name of an object: lower case, letters, digits and hyphens, no longer than 50."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:50].strip("-") or "engine"


def app(outgoing: Outgoing) -> str:
    """The label of all engines: the model's name without its organisation."""
    return label(outgoing.model.rstrip("/").rpartition("/")[2])


def name_of(outgoing: Outgoing, pool: OutgoingPool) -> str:
    """What a pool's object is called."""
    return label(f"{app(outgoing)[:30]}-{pool.name}") if pool.name else app(outgoing)


def product(pool: OutgoingPool) -> dict[str, str]:
    """The label of nodes that have the pool's GPU; empty for a GPU whose label is not known."""
    products: Mapping[str, str] = gpu_labels()["products"]
    return {PRODUCT: products[pool.gpu]} if pool.gpu in products else {}


def unlabelled(outgoing: Outgoing) -> list[str]:
    """Remarks on GPUs without a known label."""
    return [f"{pool.name or 'engine'}: gpu = {pool.gpu!r}: no label of nodes is known; name them with a nodeSelector"
            for pool in outgoing.pools if not product(pool)]


def env(pool: OutgoingPool) -> list[dict[str, Any]]:
    """Variables that an engine needs which sends its KV: NIXL's side channel listens on the pod's address."""
    config = pool.settings.kv_transfer_config
    if config is None or "Nixl" not in str(config.kv_connector):
        return []
    return [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def probes(port: int) -> dict[str, Any]:
    """Half an hour to load weights; then ready and alive as long as /health answers."""
    asked = {"httpGet": {"path": "/health", "port": port}}
    return {"startupProbe": {**asked, "periodSeconds": 10, "failureThreshold": 180},
            "readinessProbe": {**asked, "periodSeconds": 5}, "livenessProbe": {**asked, "periodSeconds": 10}}


def nodes_flags() -> list[str]:
    """Flags of an engine on several pods of a LeaderWorkerSet, which sets these variables."""
    return ["--nnodes", "$(LWS_GROUP_SIZE)", "--node-rank", "$(LWS_WORKER_INDEX)", "--master-addr",
            "$(LWS_LEADER_ADDRESS)"]


def volumes() -> list[dict[str, Any]]:
    """Shared memory, through which the processes of an engine talk."""
    return [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "20Gi"}}]


def mounts() -> list[dict[str, str]]:
    return [{"name": "shm", "mountPath": "/dev/shm"}]


_HEAD = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}


def picker_config(outgoing: Outgoing) -> tuple[dict[str, Any] | None, list[str]]:
    """The configuration, and remarks; None for a router that the endpoint picker lacks."""
    for key in ("router", "pair_router"):
        choice: Choice | None = getattr(outgoing, key)
        if choice is None:
            continue
        if choice.name != "llm_d":
            return None, [f"{key} = {_shown(choice)}: llm-d's endpoint picker has no such router"]
        if config := choice.options.get("config"):
            return _read(config), []
        return (_options(choice) if key == "router" else _pair(choice)), []
    return None, []


def _shown(choice: Choice) -> str:
    return f"{choice.name!r} {dict(choice.options)}" if choice.options else repr(choice.name)


def _read(config: Any) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    try:
        return dict(yaml.safe_load(Path(config).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise DataError(str(config), f"cannot be read: {error}") from None


def _options(choice: Choice) -> dict[str, Any]:
    """The configuration that the options of the router stand for."""
    scorers: Mapping[str, float] = choice.options.get("scorers", BASELINE)
    filters = [*choice.options.get("filters", ())]
    picker = choice.options.get("picker", "max-score-picker")
    parameters: Mapping[str, Any] = choice.options.get("parameters", {})
    names = [*dict.fromkeys([*parameters, *filters, *scorers, picker])]
    plugins = [{"type": name, **({"parameters": dict(parameters[name])} if parameters.get(name) else {})}
               for name in names]
    refs: list[dict[str, Any]] = [{"pluginRef": name} for name in filters]
    refs += [{"pluginRef": name, "weight": weight} for name, weight in scorers.items()]
    return {**_HEAD, "plugins": plugins,
            "schedulingProfiles": [{"name": "default", "plugins": [*refs, {"pluginRef": picker}]}]}


def _pair(choice: Choice) -> dict[str, Any]:
    """The same for two profiles and a decider, as of llm-d's guide pd-disaggregation."""
    options = {"threshold": 16, "prefix": 2.0, "queue": 1.0, "block_tokens": 64, **choice.options}
    producer = "precise-prefix-cache-producer"
    plugins = [
        {"type": producer}, {"type": "prefill-filter"}, {"type": "decode-filter"}, {"type": "queue-scorer"},
        {"type": "prefix-cache-scorer", "parameters": {"prefixMatchInfoProducerName": producer}},
        {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": options["threshold"],
                                                           "prefixMatchInfoProducerName": producer}},
        {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": "prefix-based-pd-decider"}}},
    ]
    weights = [{"pluginRef": "prefix-cache-scorer", "weight": options["prefix"]},
               {"pluginRef": "queue-scorer", "weight": options["queue"]}]
    profiles = [{"name": side, "plugins": [{"pluginRef": f"{side}-filter"}, *weights]}
                for side in ("prefill", "decode")]
    return {**_HEAD, "plugins": plugins, "schedulingProfiles": profiles}
