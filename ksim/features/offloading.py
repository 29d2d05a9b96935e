"""Engines that offload KV: what fits into host memory, and the connector and the workers of each of them.

A `KvLayout` says which part of the KV cache each GPU of an engine has.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, evolve, field

from ksim.features.transfers import EXTRA, KEY, offload_settings
from ksim.flow.log import Log
from ksim.flow.request import BlockKeys
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import GIB
from ksim.kv.cache import Cache
from ksim.kv.cache.evictions import Eviction
from ksim.kv.offload.connectors import OffloadParts, OffloadSettings, TierSettings
from ksim.kv.offload.store import SecondaryTier
from ksim.kv.offload.worker import Lane, OffloadWorker
from ksim.kv.transfer.transfer import KvLayout, LayerShare
from ksim.network.links import Links
from ksim.network.network import FleetNetwork
from ksim.scenario.defaults import Deployment
from ksim.scenario.features import cache_layers
from ksim.scheduling.connector import Connector
from ksim.simulation.pool import EnginePlace, EnginePool
from ksim.specs.hardware import System

__all__ = ["Offloads", "check_offloading", "kv_layout", "offloading_of", "own_cache", "tiers_of_pool"]


def kv_layout(deployment: Deployment) -> KvLayout:
    """Which part of the KV cache each GPU of an engine of *deployment* has."""
    layers = []
    for stage, shard in enumerate(deployment.shards):
        parts, whole = (cache_layers(deployment.model, deployment.serve, rank)
                        for rank in (shard, evolve(shard, tensor=1)))
        for part, layer in zip(parts, whole, strict=True):
            held, all_ = part.token_bytes or part.sequence_bytes, layer.token_bytes or layer.sequence_bytes
            layers.append(LayerShare(stage, part.token_bytes, max(1, round(all_ / held)), part.sequence_bytes))
    return KvLayout(deployment.serve.tensor_parallel_size, tuple(layers))


def own_cache(deployment: Deployment, tokens: int, eviction: Eviction) -> Cache | None:
    """The cache that a store brings for an engine with room for so many *tokens* on its GPUs; None for the usual one.
    """
    serve, settings = deployment.serve, offload_settings(deployment.serve.kv_transfer_config)
    return settings.cache(tokens, bool(serve.enable_prefix_caching), eviction, _token_bytes(deployment),
                          serve.gpus) if settings else None


def host_bytes(deployment: Deployment, settings: OffloadSettings) -> float:
    """The bytes of host memory that one engine takes, or gives to a pool."""
    assert deployment.serve.block_size is not None, "settings are derived before engines are built"
    tokens = deployment.kv_blocks * deployment.serve.block_size
    return settings.host_bytes(tokens, _token_bytes(deployment), deployment.serve.gpus)


def _token_bytes(deployment: Deployment) -> float:
    """The bytes of a token's keys and values on all GPUs of an engine."""
    layout = kv_layout(deployment)
    return layout.ranks * sum(layer.bytes for layer in layout.layers)


def offloading_of(pool: EnginePool) -> OffloadSettings | None:
    """What the engines of *pool* say about offloading; None where they do not offload."""
    settings: OffloadSettings | None = offload_settings(pool.deployment.serve.kv_transfer_config)
    return settings


def tiers_of_pool(pool: EnginePool) -> tuple[str, ...]:
    """Where the engines of *pool* keep KV beyond their GPUs."""
    settings = offloading_of(pool)
    return ("cpu", *(tier.tier for tier in settings.tiers)) if settings else ()


def check_offloading(pools: Sequence[EnginePool]) -> None:
    """Raise ConfigError for tiers that cannot be: of other engines than vLLM's, or larger than the nodes have."""
    taken: dict[tuple[System, tuple[int, int]], list[float]] = defaultdict(list)
    for pool in pools:
        settings = offloading_of(pool)
        if settings is not None:
            _check(pool.deployment, settings)
            for place in pool.places:
                for node, share in _shares(pool, place).items():
                    taken[pool.deployment.system, node].append(share * host_bytes(pool.deployment, settings))
    for (system, _), parts in taken.items():
        if system.memory is not None and sum(parts) > system.memory:
            sized = any(pool.deployment.serve.kv_offloading_size is not None for pool in pools)
            _refuse("serve.kv_offloading_size" if sized else f"{KEY}.{EXTRA}", system, system.memory, parts)


def _check(deployment: Deployment, settings: OffloadSettings) -> None:
    serve = deployment.serve
    assert serve.block_size is not None, "settings are derived before engines are built"
    if serve.prefix_cache != settings.prefix_cache:
        kept, remedy = ("SGLang's radix tree", "set \"sglang\"") if settings.prefix_cache == "sglang" else (
            "vLLM's blocks", "leave it out")
        raise ConfigError("serve.prefix_cache", f"is {serve.prefix_cache!r}, and {settings.alias} keeps {kept};"
                                                f" {remedy}")
    if any(layer.state for layer in kv_layout(deployment).layers):
        raise ConfigError(KEY, f"{deployment.model.name} has layers that keep a state of each sequence, and offloading"
                               " of states is not simulated; leave out offloading")
    try:
        settings.blocks_of_chunk(serve.block_size)
    except ValueError as error:
        raise ConfigError(f"{KEY}.{EXTRA}", str(error)) from None


def _shares(pool: EnginePool, place: EnginePlace) -> Mapping[tuple[int, int], float]:
    """Which share of an engine's GPUs lies on which node of its system, which has GPUs from `offset` on."""
    gpus, size = pool.gpus(place), pool.deployment.system.gpus_per_node
    nodes = [(pool.offset, (gpu - pool.offset) // size) for gpu in gpus]
    return {node: nodes.count(node) / len(nodes) for node in dict.fromkeys(nodes)}


def _refuse(key: str, system: System, memory: float, parts: Sequence[float]) -> None:
    count = f"{len(parts)} engines" if len(parts) > 1 else "one engine"
    most = f"{memory / len(parts) / GIB:.4g}"
    raise ConfigError(key, f"{count} of a node would take {sum(parts) / GIB:.4g} GiB of host memory for KV, and a node"
                           f" of {system.name} has {memory / GIB:.4g} GiB; set at most {most} GiB each, or name a"
                           " system with more memory (docs/plugins.md)")


def _holds_nothing(deployment: Deployment, chunk: float) -> ConfigError:
    """What is wrong with host memory that has no room for a *chunk* of so many bytes; vLLM refuses one of 0 bytes."""
    sized = deployment.serve.kv_offloading_size
    key = f"{KEY}.{EXTRA}" if sized is None else "serve.kv_offloading_size"
    given = "host memory for KV" if sized is None else f"{sized:g} GiB"
    return ConfigError(key, f"{given} would hold nothing: a chunk of KV takes {chunk / GIB:.4g} GiB; give it room for"
                            " some, or leave out offloading")


@define(eq=False)
class SharedStores:
    """The tiers and the pools that engines of a run share, if their chunks have one size."""

    _tiers: dict[tuple[str, int], SecondaryTier] = field(factory=dict, init=False)
    _pools: dict[tuple[str, int, int, int], Any] = field(factory=dict, init=False)

    def tier(self, kind: str, end: str, chunk_bytes: float, capacity: int | None) -> SecondaryTier:
        """The tier of this *kind* at the *end* of links, with room for *capacity* chunks; None: for all."""
        return self._tiers.setdefault((end, round(chunk_bytes)), SecondaryTier(kind, end, capacity))

    def pool(self, settings: OffloadSettings, model: str, block_tokens: int, chunk_bytes: float,
             nodes: Sequence[int], seed: int) -> Any:
        """The pool of engines of one *model* with equal blocks; the GPUs of one of them on these *nodes* give memory to
        it."""
        key = model, block_tokens, len(nodes), round(chunk_bytes)
        if key not in self._pools:
            self._pools[key] = settings.pool(seed)
        for node, ranks in Counter(nodes).items():
            self._pools[key].add_segment(f"host{node}", int(settings.pool_bytes(ranks) // chunk_bytes))
        return self._pools[key]


@define(eq=False)
class Offloads:
    """Builds the connectors and workers of the engines of one run, whose stores know blocks by the same `keys`."""

    network: FleetNetwork
    log: Log
    keys: dict[int, BlockKeys] = field(factory=dict)
    stores: SharedStores = field(factory=SharedStores)

    def of(self, settings: OffloadSettings, pool: EnginePool, number: int, place: EnginePlace, cache: Cache
           ) -> tuple[Connector, OffloadWorker]:
        """The two sides of the connector of engine *number* of *pool*, which has a *cache* on its GPUs."""
        deployment, links = pool.deployment, self.network.links
        assert deployment.serve.block_size is not None, "settings are derived before engines are built"
        tokens = settings.key_tokens(deployment.serve.block_size)
        keys = self.keys.setdefault(tokens, BlockKeys(tokens))
        loading, storing = (_lanes(deployment, pool.gpus(place), links, stores) for stores in (False, True))
        host = f"host{links.node(pool.gpus(place)[0])}"
        parts = OffloadParts(keys, sum(lane.block_bytes for lane in storing),
                             bool(deployment.serve.enable_prefix_caching), len(storing), cache=cache, host=host)
        size = _chunk_bytes(settings, parts)
        if settings.pooled:
            parts = evolve(parts, pool=self.stores.pool(
                settings, deployment.model.name, keys.block_tokens, size,
                [links.node(gpu) for gpu in pool.gpus(place)], deployment.scenario.seed))
        if settings.chunks(parts) < 1:
            raise _holds_nothing(deployment, size)
        tiers = {} if settings.pooled else {self._tier(tier, settings, size, pool, host): tier
                                            for tier in settings.tiers}
        connector = settings.connector(parts, tuple(tiers))
        common = {"number": number, "network": self.network, "log": self.log, "loading": loading, "storing": storing}
        return connector, settings.worker(connector, parts, tiers, size, common)

    def _tier(self, tier: TierSettings, settings: OffloadSettings, size: float, pool: EnginePool, host: str
              ) -> SecondaryTier:
        """The tier that the engines of a node, or of the fleet, share; raises ConfigError where nodes have none."""
        system = pool.deployment.system
        there: Any = system.disk if tier.tier == "disk" else system.storage
        if there is None:
            raise ConfigError(f"{KEY}.{EXTRA}", f"{settings.tiers_key} has a tier on {tier.tier}, and {system.name} has"
                                                f" no {tier.tier}; give its file a [{tier.tier}] (docs/plugins.md)")
        end = host.replace("host", "disk") if tier.tier == "disk" else tier.tier
        capacity = None if there.capacity is None else int(there.capacity // size)
        if capacity == 0:
            raise ConfigError(f"{KEY}.{EXTRA}", f"the {tier.tier} of {system.name} has {there.capacity:g} bytes, and a"
                                                f" chunk of KV takes {size:.0f}; leave out this tier, or give the"
                                                " system's file more")
        return self.stores.tier(tier.tier, end, size, capacity)


def _chunk_bytes(settings: OffloadSettings, parts: OffloadParts) -> float:
    return parts.block_bytes * settings.blocks_of_chunk(parts.keys.block_tokens)


def _lanes(deployment: Deployment, gpus: Sequence[int], links: Links, stores: bool) -> list[Lane]:
    """The lanes over which the *gpus* of an engine load or store, stage by stage, each its own share of a block.

    Latent attention keeps the same on all GPUs of a node: the first one stores it, and all load it.
    """
    layout = kv_layout(deployment)
    if stores and _replicated(deployment, gpus, links):
        gpus = gpus[:1]
    lanes, tokens = [], deployment.block_tokens
    for place, gpu in enumerate(gpus):
        stage = place // layout.ranks
        size = tokens * sum(layer.bytes for layer in layout.layers if layer.stage == stage)
        ends = f"gpu{gpu}", f"host{links.node(gpu)}"
        lanes.append(Lane(links.path(*(ends if stores else ends[::-1])), size, gpu))
    return lanes


def _replicated(deployment: Deployment, gpus: Sequence[int], links: Links) -> bool:
    """Whether vLLM keeps one copy of what all GPUs of an engine have (its `replicated_layout`)."""
    serve = deployment.serve
    return deployment.model.attends_latently and serve.pipeline_parallel_size == 1 < (
        serve.tensor_parallel_size) and len({links.node(gpu) for gpu in gpus}) == 1
