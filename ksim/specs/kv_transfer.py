"""How an engine sends KV blocks to others, or takes them: vLLM's `KVTransferConfig`, key by key."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen
from attrs.validators import ge, gt, in_, optional

#: What vLLM's flag ``--kv-offloading-backend`` takes.
OFFLOADING_BACKENDS = ("native", "lmcache")
ROLES = ("kv_producer", "kv_consumer", "kv_both")


@frozen
class KvTransferConfig:
    """What vLLM's flag ``--kv-transfer-config`` takes (0.33, vllm/config/kv_transfer.py).

    Addresses, ports and ids are read, so that a deployment's own text is valid, and change nothing.
    """

    kv_connector: str | None = None
    """The connector, which says which KV goes where and when; vLLM's class names are accepted. OffloadingConnector
    keeps KV of one engine, MultiConnector has several. Default: NixlConnector where pools prefill and decode apart.
    Names: kv.transfer.connectors. Source: vLLM. Example: "NixlConnector"."""
    kv_role: str | None = field(default=None, validator=optional(in_(ROLES)))
    """Whether an engine sends KV, takes it, or both. Default: that of the pool's role. Source: vLLM. Example:
    "kv_both"."""
    kv_load_failure_policy: str = field(default="fail", validator=in_(("fail", "recompute")))
    """What becomes of a request whose KV does not arrive: it ends with an error, or its prompt is computed again.
    Source: vLLM."""
    kv_connector_extra_config: Mapping[str, Any] = field(factory=dict)
    """Options of the connector. Default: none. Source: vLLM. Example: {kv_lease_duration = 30}."""
    kv_buffer_device: str = field(default="cuda", validator=in_(("cuda", "cpu", "xpu")))
    """Where KV is kept while it is sent; ksim knows "cuda" alone. Source: vLLM."""
    kv_buffer_size: float = field(default=1e9, validator=gt(0))
    """Buffer of connectors that ksim does not simulate; changes nothing. Unit: B. Source: vLLM."""
    kv_parallel_size: int = field(default=1, validator=gt(0))
    """Instances that send to each other; changes nothing. Unit: instances. Source: vLLM."""
    kv_rank: int | None = field(default=None, validator=optional(ge(0)))
    """Number of the instance; changes nothing. Unit: none. Default: none. Source: vLLM. Example: 0."""
    kv_ip: str = "127.0.0.1"
    """Address; changes nothing. Source: vLLM."""
    kv_port: int = field(default=14579, validator=gt(0))
    """Port; changes nothing. Unit: none. Source: vLLM."""
    engine_id: str | None = None
    """Name of the instance; changes nothing. Default: one that vLLM draws. Source: vLLM. Example: "decode-0"."""
    kv_connector_module_path: str | None = None
    """Module of a connector class of one's own; ksim takes "package.module:Class" as `kv_connector` instead. Default:
    none. Source: vLLM. Example: "mine.connectors"."""
    enable_permute_local_kv: bool = False
    """Change the layout of KV that arrives; changes nothing. Source: vLLM."""

    def __attrs_post_init__(self) -> None:
        if self.kv_buffer_device != "cuda":
            raise ValueError(f"kv_buffer_device = {self.kv_buffer_device!r} would send KV by way of host memory, which"
                             f" is not simulated; set 'cuda', or leave it out")
        if self.kv_connector_module_path is not None:
            raise ValueError(f"kv_connector_module_path = {self.kv_connector_module_path!r} names code of vLLM's, which"
                             f" ksim cannot run; write a plug-in, and name it in kv_connector as package.module:Class")

    @property
    def produces(self) -> bool:
        """Whether the engine sends KV."""
        return self.kv_role in ("kv_producer", "kv_both")

    @property
    def consumes(self) -> bool:
        """Whether the engine takes KV."""
        return self.kv_role in ("kv_consumer", "kv_both")
