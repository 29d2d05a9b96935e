"""SGLang's prefix cache for an engine, and host memory behind it where HiCache is on."""

from ksim.kv_cache.evictions import Eviction
from ksim.kv_cache.sglang import SglangCache
from ksim.kv_offload.connectors.hicache import Hicache
from ksim.kv_offload.hicache.cache import HiCache
from ksim.simulation.connector_parts import offload_settings
from ksim.simulation.deployment import Deployment
from ksim.simulation.kv_layouts import kv_layout

__all__ = ["host_bytes", "sglang_cache"]


def sglang_cache(deployment: Deployment, tokens: int, eviction: Eviction) -> SglangCache:
    """A radix tree with room for so many *tokens* on the GPUs."""
    serve = deployment.serve
    settings = offload_settings(serve.kv_transfer_config)
    if not isinstance(settings, Hicache):
        return SglangCache(tokens, bool(serve.enable_prefix_caching), eviction)
    host = settings.host_tokens(tokens, _token_bytes(deployment), serve.gpus)
    return HiCache(tokens, bool(serve.enable_prefix_caching), eviction, host_capacity=host,
                   write_policy=settings.hicache_write_policy)


def host_bytes(deployment: Deployment, settings: Hicache) -> float:
    """The bytes of host memory that one engine takes, or gives to a pool."""
    pooled = settings.pool_bytes(deployment.serve.gpus)
    if settings.hicache_size:
        return settings.cpu_bytes(deployment.serve.gpus) + pooled
    assert deployment.serve.block_size is not None, "settings are derived before engines are built"
    tokens = deployment.kv_blocks * deployment.serve.block_size
    return settings.hicache_ratio * tokens * _token_bytes(deployment) + pooled


def _token_bytes(deployment: Deployment) -> float:
    """The bytes of a token's keys and values on all GPUs of an engine."""
    layout = kv_layout(deployment)
    return layout.ranks * sum(layer.bytes for layer in layout.layers)
