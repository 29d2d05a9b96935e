"""SGLang's HiCache: host memory behind the tree, as the connector of that name has it."""

from collections.abc import Sequence
from typing import Any

from ksim.deploy.flags.given import Given, value_of

#: Keys of ksim's connector, which are the flags' names.
_KEYS = ("hicache_ratio", "hicache_size", "hicache_write_policy", "hicache_io_backend", "hicache_mem_layout",
         "hicache_storage_backend", "hicache_storage_prefetch_policy", "hicache_storage_backend_extra_config")
#: Flags that are read together.
FLAGS = (*_KEYS, "enable_hierarchical_cache", "hicache_host_memory_mode", "hicache_host_memory_fraction",
         "hicache_storage_prefetch_retry_poll_interval", "hicache_storage_prefetch_retry_max_attempts")


def hierarchical(given: Sequence[Given]) -> dict[str, Any]:
    """The connector that `--enable-hierarchical-cache` stands for; empty without it."""
    if not value_of(given, "enable_hierarchical_cache"):
        return {}
    options = {key: value for key in _KEYS if (value := value_of(given, key)) is not None}
    if "hicache_storage_backend" in options and (page := value_of(given, "page_size")):
        options["page_size"] = page
    return {"kv_connector": "HiCache", "kv_role": "kv_both", "kv_connector_extra_config": options}
