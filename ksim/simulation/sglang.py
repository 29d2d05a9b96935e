"""SGLang's scheduler and radix cache for an engine of SGLang's, where ksim has its rules."""

from attrs import fields_dict

from ksim.foundation.catalog import plugin
from ksim.kv.cache.radix import RadixCache
from ksim.scenario.defaults import Deployment
from ksim.scheduling.sglang.limits import SglangLimits
from ksim.scheduling.sglang.scheduler import SglangScheduler

__all__ = ["sglang_cache", "sglang_limits", "sglang_scheduler"]


def sglang_limits(deployment: Deployment) -> SglangLimits:
    """What decides the schedules of one rank of an engine with complete settings."""
    serve = deployment.serve
    assert serve.sglang and serve.max_num_seqs and serve.max_model_len, "settings are derived before"
    rank = serve.sglang.on_rank(serve.data_parallel_size)
    shared = {name: getattr(rank, name) for name in fields_dict(SglangLimits) if hasattr(rank, name)}
    own = {"max_running_requests": serve.max_num_seqs, "context_length": serve.sglang.context_length,
           "random_seed": deployment.scenario.seed, "max_logprobs": serve.max_logprobs}
    return SglangLimits(**{**shared, **own})


def sglang_cache(deployment: Deployment, blocks: int) -> RadixCache:
    """A cache of *blocks* pages."""
    serve = deployment.serve
    assert serve.block_size and serve.eviction, "settings are derived before"
    return RadixCache(blocks, serve.block_size, bool(serve.enable_prefix_caching),
                      plugin("kv.cache.evictions", serve.eviction))


def sglang_scheduler(deployment: Deployment, cache: RadixCache) -> SglangScheduler:
    """A scheduler of the jobs whose KV is in *cache*."""
    policy = plugin("scheduling.policies", deployment.serve.scheduling_policy)
    return SglangScheduler(sglang_limits(deployment), policy, cache)
