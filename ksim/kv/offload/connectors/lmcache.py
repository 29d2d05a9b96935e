"""LMCache inside an engine (LMCacheConnectorV1): chunks in the host memory of each rank, loaded within steps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from attrs import field, frozen
from attrs.validators import ge, gt, in_

from ksim.foundation.units import GIB
from ksim.kv.offload.connectors import OffloadParts, OffloadSettings
from ksim.kv.offload.lmcache import LmcacheConnector, LmcacheStore
from ksim.kv.offload.store import SecondaryTier

__all__ = ["Lmcache"]


#: Keys that change no time: names, addresses, timeouts, what LMCache does with partial chunks, which are not kept, and
#: lookups that begin to read ahead from tiers behind host memory, of which there is none.
_WITHOUT_EFFECT = {
    "use_native", "enable_async_loading", "lmcache_rpc_port", "lookup_rpc_port", "discard_partial_chunks",
    "lmcache_instance_id", "pre_caching_hash_algorithm", "remote_serde", "numa_mode", "local_cpu_use_hugepages",
    "reserve_local_cpu_size", "lookup_timeout_ms", "blocking_timeout_secs", "py_enable_gc", "config_file",
    "internal_api_server_enabled", "internal_api_server_port_start", "enable_lazy_memory_allocator", "use_experimental"}


def _unset(instance: Any, attribute: Any, value: Any) -> None:
    """A validator for what ksim does not simulate: only the default is let in."""
    if value != attribute.default:
        raise ValueError(f"lmcache.{attribute.name} = {value!r} is not simulated; leave it out")


@frozen(kw_only=True)
class Lmcache(OffloadSettings):
    """`max_local_cpu_size` GiB of host memory for each rank, in chunks of `chunk_size` tokens.

    The keys are those of LMCache's configuration, with "lmcache." before them as vLLM passes them on, or as LMCache's
    environment variables ("LMCACHE_CHUNK_SIZE").
    """

    alias: ClassVar[str] = "LMCacheConnectorV1"
    size_key: ClassVar[str] = "lmcache.max_local_cpu_size"

    chunk_size: int = field(default=256, validator=gt(0))
    max_local_cpu_size: float = field(default=5.0, validator=gt(0))
    save_decode_cache: bool = False
    min_retrieve_tokens: int = field(default=0, validator=ge(0))
    cache_policy: str = field(default="LRU", validator=in_(("LRU",)))
    local_cpu: bool = field(default=True, validator=_unset)
    use_layerwise: bool = field(default=False, validator=_unset)
    save_unfull_chunk: bool = field(default=False, validator=_unset)
    skip_last_n_tokens: int = field(default=0, validator=_unset)
    enable_blending: bool = field(default=False, validator=_unset)
    enable_p2p: bool = field(default=False, validator=_unset)
    enable_pd: bool = field(default=False, validator=_unset)
    local_disk: str | None = field(default=None, validator=_unset)
    max_local_disk_size: float = field(default=0.0, validator=_unset)
    remote_url: str | None = field(default=None, validator=_unset)
    gds_path: str | None = field(default=None, validator=_unset)

    @classmethod
    def options(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """The options in *table*, as a deployment has it, by the names of the fields."""
        return {name: value for name, value in _named(table) if name not in _WITHOUT_EFFECT}

    def cpu_bytes(self, ranks: int) -> float:
        return self.max_local_cpu_size * GIB * ranks

    def blocks_of_chunk(self, block_tokens: int) -> int:
        if self.chunk_size % block_tokens:
            raise ValueError(f"lmcache.chunk_size = {self.chunk_size} is no multiple of the KV cache's blocks of"
                             f" {block_tokens} tokens; set {-(-self.chunk_size // block_tokens) * block_tokens}")
        return self.chunk_size // block_tokens

    def chunks(self, parts: OffloadParts) -> int:
        return int(self.cpu_bytes(parts.ranks) // (parts.block_bytes * self.blocks_of_chunk(parts.keys.block_tokens)))

    def connector(self, parts: OffloadParts, tiers: Sequence[SecondaryTier] = ()) -> LmcacheConnector:
        return LmcacheConnector(
            LmcacheStore(self.chunks(parts)), parts.keys, self.blocks_of_chunk(parts.keys.block_tokens),
            self.save_decode_cache, self.min_retrieve_tokens, parts.prefix_caching)


def _named(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if key == "lmcache" and isinstance(value, Mapping):  # TOML reads a key with a dot as a table
            yield from value.items()
        elif key.startswith("LMCACHE_"):
            yield key.removeprefix("LMCACHE_").lower(), value
        else:
            yield key.removeprefix("lmcache."), value
