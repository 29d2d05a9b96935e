"""Fleets as settings: pools of engines that prefill and decode apart, or of two kinds of GPUs, and their names."""

from collections.abc import Mapping, Sequence
from typing import Any

from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.scenario.scenario import put
from ksim.scenario.sizing import pack
from ksim.specs.shard import Shard
from ksim.study.grid import Settings, short_names, value_text
from ksim.study.planning.candidates import DRAFTER, OWN, ROUTER, EngineFamily

__all__ = ["Engines", "apart_settings", "gpus_of", "grown", "mixed_settings", "name_of", "transfer"]

#: Families, and how many replicas there are of each.
Engines = Sequence[tuple[EngineFamily, int]]
_CONNECTOR = "serve.kv_transfer_config"
#: The router of engines that are not equally fast: it gives a faster one more.
_EVENING = "least_outstanding"


def gpus_of(engines: Engines) -> int:
    """The GPUs of all replicas of *engines*."""
    return sum(count * family.gpus for family, count in engines)


def apart_settings(engines: Engines) -> Settings:
    """The settings of *engines* that prefill and, after these, of those that decode."""
    first = engines[0][0]
    router = first.shared.get(ROUTER)
    pair = {"pair_router": {"name": "each_side", "prefill": router}} if router else {}
    return {**_fleet({"prefill": "prefill", "decode": "decode"}, engines), **pair, **_connected(first)}


def mixed_settings(engines: Engines) -> Settings:
    """The settings of *engines* of two kinds of GPUs that serve requests alone, of which a pool has the name."""
    kinds = [family.kind.name for family, _ in engines]
    usual = engines[0][0].variants[0].scenario.router.name == "round_robin"
    return {**_fleet(dict.fromkeys(kinds, "both"), engines), **({ROUTER: _EVENING} if usual else {})}


def _fleet(roles: Mapping[str, str], engines: Engines) -> Settings:
    """The settings that all *engines* share, and pools with the others, whose names and *roles* are these.

    Pools of several kinds of GPUs have nodes of their own.
    """
    families = [family for family, _ in engines]
    shared = {key: value for key, value in families[0].shared.items() if key not in (*OWN, ROUTER, "gpu", "nodes")
              and all(one.shared.get(key) == value for one in families)}
    several = len({family.kind.name for family in families}) > 1
    pools = dict[str, Any]()
    for (name, role), (family, count) in zip(roles.items(), engines, strict=True):
        pools[name] = {"role": role, "replicas": count, "serve": _own(family, shared)}
        if several:
            pools[name] |= {"gpu": family.kind.name, "nodes": _nodes([(family, count)])}
    return {"gpu": families[0].kind.name, **shared, **({} if several else {"nodes": _nodes(engines)}), "pools": pools}


def _own(family: EngineFamily, shared: Settings) -> dict[str, Any]:
    """The engine settings of *family* that are not among those *shared*."""
    own = dict[str, Any]()
    for key, value in family.shared.items():
        if key.startswith("serve.") and key not in shared:
            put(own, key.removeprefix("serve."), value)
    return own


def _nodes(engines: Engines) -> int:
    """The nodes that *engines* need, packed in their order."""
    node = engines[0][0].variants[0].system.gpus_per_node
    return -(-pack([family.gpus for family, count in engines for _ in range(count)], node)[1] // node)


def grown(settings: Settings, role: str) -> Settings:
    """*settings* with one engine more in the pool that has this *role*; in the last one, where all serve alone."""
    pools = dict(settings["pools"])
    name = next((name for name, pool in pools.items() if pool["role"] == role), [*pools][-1])
    more = {"replicas": pools[name]["replicas"] + 1, **({"nodes": pools[name]["nodes"] + 1} if "nodes" in pools[name]
                                                        else {})}
    nodes = {} if "nodes" in pools[name] else {"nodes": settings["nodes"] + 1}
    return {**settings, **nodes, "pools": {**pools, name: {**pools[name], **more}}}


def transfer(prefill: EngineFamily, decode: EngineFamily) -> tuple[float, float]:
    """Seconds until KV moves from one engine to the other, and for each token of it, over the NICs of both."""
    one, other = prefill.variants[0], decode.variants[0]
    serve, links = one.serve, [each.system.network or each.system.inside for each in (one, other)]
    connector = plugin("kv.transfer.connectors", Choice("sglang" if one.version.scheduler == "sglang" else "nixl"))
    held = one.model.cache_per_token(Shard(tensor=serve.tensor_parallel_size, precision=serve.precision))
    ends = min(serve.tensor_parallel_size, other.serve.tensor_parallel_size)
    slower = min(link.bandwidth * link.efficiency for link in links)
    return connector.start, serve.tensor_parallel_size * held / (ends * slower * connector.share)


def _connected(family: EngineFamily) -> Settings:
    """How engines of *family* send KV, where that is not as of the scenario: SGLang's own way, which its engines take.
    """
    asked, of_sglang = family.variants[0].serve.kv_transfer_config, family.variants[0].version.scheduler == "sglang"
    return {_CONNECTOR: {"kv_connector": "SGLangConnector"}} if of_sglang and asked is None else {}


#: How a name says a setting.
_SAID = {"serve.tensor_parallel_size": "TP{}", "serve.pipeline_parallel_size": "PP{}",
         "serve.data_parallel_size": "DP{}", "serve.quantization": "{}", "serve.kv_cache_dtype": "{} KV",
         "serve.max_num_batched_tokens": "{:,} tokens a step", "serve.max_num_seqs": "{:,} sequences",
         "serve.sglang.chunked_prefill_size": "{:,} tokens a step",
         "serve.sglang.max_running_requests": "{:,} sequences",
         "serve.enable_expert_parallel": "EP", "engine": "{}"}


def name_of(settings: Settings) -> str:
    """Such as "TP4, fp8, 8,192 tokens a step on h100"; of engines apart, how many of each."""
    pools, parts = settings.get("pools", {}), list[str]()
    several = any("gpu" in pool for pool in pools.values())
    if pools:
        parts.append(" + ".join(_pool_name(name, pool) for name, pool in pools.items()))
    if router := settings.get(ROUTER) or settings.get("pair_router", {}).get("prefill"):
        parts.append(str(router))
    if drafter := settings.get(DRAFTER):
        parts.append(f"{drafter['method']} with {drafter['num_speculative_tokens']} drafts")
    others = [key for key in settings if key not in (
        *_SAID, _CONNECTOR, DRAFTER, ROUTER, "pair_router", "pools", "gpu", "nodes")]
    shorter = short_names(others)
    for key, value in settings.items():
        if key in _SAID and (value is True or value not in ("auto", 1)):
            parts.append(_SAID[key].format(value))
        elif key in others:
            parts.append(f"{shorter[key]} {value_text(value)}")
    said = ", ".join(parts) or "one GPU each"
    return said if several else f"{said} on {settings['gpu']}"


def _pool_name(name: str, pool: Mapping[str, Any]) -> str:
    """Such as "3 prefill TP1", or "2 TP4 on h200" of one that serves requests alone."""
    own = pool["serve"]
    role = "" if pool["role"] == "both" else f"{name} "
    data = f" DP{own['data_parallel_size']}" if own.get("data_parallel_size", 1) > 1 else ""
    on = f" on {pool['gpu']}" if "gpu" in pool else ""
    return f"{pool['replicas']} {role}TP{own.get('tensor_parallel_size', 1)}{data}{on}"
