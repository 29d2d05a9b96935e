"""The settings of SGLang's scheduler and cache, as `sglang serve` names them (0.5.23, srt/arg_groups/fields).

They count for engines whose release has SGLang's scheduler.  Values are those of the server: `on_rank` has those of one
rank of data-parallel attention.
"""

from attrs import Attribute, evolve, field, frozen
from attrs.validators import ge, gt, in_, le, lt, optional

__all__ = ["SglangSettings", "SCHEDULE_POLICIES", "RADIX_EVICTIONS"]

#: Orders of the waiting queue.
SCHEDULE_POLICIES = ("fcfs", "lpm", "dfs-weight", "lof", "hrrn", "random", "shortest-prefill-first")
#: Orders of SGLang's that ksim does not simulate.
_OTHER_POLICIES = {"routing-key": "ksim's requests have no routing keys", "priority": "set enable_priority_scheduling"}
#: Orders in which the radix tree evicts leaves.
RADIX_EVICTIONS = ("lru", "lfu", "fifo", "mru", "filo", "slru")
#: With data-parallel attention, ranks expect this share of what `schedule_conservativeness` says
#: (srt/arg_groups/parallel_hook.py, handle_data_parallelism).
RANKS_CONSERVATIVENESS = 0.3


def _known_policy(_: object, attribute: "Attribute[str]", value: str) -> None:
    if value in _OTHER_POLICIES:
        raise ValueError(f"{attribute.name!r} = {value!r} is not simulated: {_OTHER_POLICIES[value]}, or choose one of"
                         f" {', '.join(SCHEDULE_POLICIES)}")


def _chunk(_: object, attribute: "Attribute[int | None]", value: int | None) -> None:
    if value is not None and value != -1 and value <= 0:
        raise ValueError(f"{attribute.name!r} must be a number of tokens, or -1 to cut no prompt, not {value}")


@frozen
class SglangSettings:
    """The settings of ``sglang serve`` that decide its schedules (0.5.23), with its names and defaults.

    A setting that is None gets the default of the simulated release, or sets no limit.
    """

    chunked_prefill_size: int | None = field(default=None, validator=_chunk)
    """Most prompt tokens in a prefill batch, beyond which prompts are cut; -1 cuts none. Data-parallel attention
    divides it among its ranks. Unit: tokens. Default: set by GPU memory. Source: SGLang. Example: 8192."""
    max_prefill_tokens: int = field(default=16384, validator=gt(0))
    """Most tokens of the prompts in a prefill batch. Unit: tokens. Source: SGLang."""
    prefill_max_requests: int | None = field(default=None, validator=optional(gt(0)))
    """Most requests in a prefill batch. Unit: requests. Default: no limit. Source: SGLang. Example: 16."""
    max_running_requests: int | None = field(default=None, validator=optional(gt(0)))
    """Most requests that run at once, over all ranks of data-parallel attention. Unit: requests. Default: by the KV
    cache and the context length, 2048 to 4096 a rank; 48 with speculative decoding. Source: SGLang. Example: 256."""
    max_queued_requests: int | None = field(default=None, validator=optional(gt(0)))
    """Most requests that wait; more are refused. Unit: requests. Default: no limit. Source: SGLang. Example: 1000."""
    max_total_tokens: int | None = field(default=None, validator=optional(gt(0)))
    """Most tokens that the KV cache holds. Unit: tokens. Default: as many as fit. Source: SGLang. Example: 100000."""
    context_length: int | None = field(default=None, validator=optional(gt(1)))
    """Most tokens of a request, prompt and output together. Unit: tokens. Default: the context length in config.json.
    Source: SGLang. Example: 32768."""
    page_size: int | None = field(default=None, validator=optional(gt(0)))
    """Tokens in a page of the KV cache. Unit: tokens. Default: that of the attention kernels for the model and GPU.
    Source: SGLang. Example: 64."""
    mem_fraction_static: float | None = field(default=None, validator=optional((gt(0), lt(1))))
    """Share of the free GPU memory for weights and KV cache. Unit: share. Default: what activations and CUDA graphs
    leave. Source: SGLang. Example: 0.85."""
    schedule_policy: str = field(default="fcfs", validator=(_known_policy, in_(SCHEDULE_POLICIES)))
    """Order of waiting requests. Source: SGLang."""
    schedule_conservativeness: float = field(default=1.0, validator=ge(0))
    """How much of their outputs running requests are expected to need. Data-parallel attention takes 0.3 times it.
    Unit: none. Source: SGLang."""
    enable_mixed_chunk: bool = False
    """Decode in the steps of prefill batches, too. Source: SGLang."""
    disable_radix_cache: bool = False
    """Share no prefixes; the default on decode servers. Source: SGLang."""
    radix_eviction_policy: str = field(default="lru", validator=in_(RADIX_EVICTIONS))
    """Which leaves of the radix tree are evicted first. Source: SGLang."""
    disable_overlap_schedule: bool = False
    """Plan a step only when the result of the one before it is known; always with pipeline stages. Source: SGLang."""
    enable_priority_scheduling: bool = False
    """Order waiting requests by priority, and preempt running ones for them. Source: SGLang."""
    schedule_low_priority_values_first: bool = False
    """Take lower values of priority first. Source: SGLang."""
    priority_scheduling_preemption_threshold: int = field(default=10, validator=ge(0))
    """Difference of priorities above which a running request is preempted. Unit: none. Source: SGLang."""
    disable_priority_preemption: bool = False
    """Preempt no running request for one that is more urgent. Source: SGLang."""
    default_priority_value: int | None = None
    """Priority of requests that have none. Unit: none. Default: they come last. Source: SGLang. Example: 0."""
    retraction_policy: str = field(default="length", validator=in_(("length", "priority")))
    """Who is retracted first when the KV cache is full: those with the shortest output, or the least urgent. Source:
    SGLang."""
    prefill_decode_interval: int | None = field(default=None, validator=optional(ge(0)))
    """Decode steps after a prefill batch before the next one; 0 for none. Unit: steps. Default: 0; 22 for Qwen3-VL on
    Hopper. Source: SGLang. Example: 8."""
    prefill_decode_interval_min_bs: int = field(default=0, validator=ge(0))
    """Fewest running requests for which that interval counts. Unit: requests. Source: SGLang."""
    min_free_slots_delay: int | None = field(default=None, validator=optional(gt(0)))
    """Free places, of `max_running_requests`, that a prefill batch waits for while others run. Unit: requests. Default:
    it does not wait. Source: SGLang. Example: 8."""
    scheduler_recv_interval: int = field(default=1, validator=gt(0))
    """Steps from one look for new requests to the next. Unit: steps. Source: SGLang."""
    swa_full_tokens_ratio: float | None = field(default=None, validator=optional((gt(0), le(1))))
    """Tokens that layers with a sliding window have room for, over those of the others. Unit: share. Default: 0.8.
    Source: SGLang. Example: 0.5."""
    disable_hybrid_swa_memory: bool | None = None
    """Keep all tokens for layers with a sliding window, too. Default: true for models for which SGLang has no such
    pool. Source: SGLang. Example: true."""
    num_reserved_decode_tokens: int = field(default=512, validator=ge(0))
    """Tokens that a decode server keeps free for each of its requests when it takes another. Unit: tokens. Source:
    SGLang."""
    disaggregation_decode_extra_slots: int | None = field(default=None, validator=optional(ge(0)))
    """Requests whose KV is on its way to a decode server, beyond `max_running_requests`. Unit: requests. Default: twice
    a `max_running_requests` of at most 32 a rank, else 0. Source: SGLang. Example: 32."""
    disaggregation_decode_enable_radix_cache: bool = False
    """Share prefixes on decode servers, too. Source: SGLang."""

    def __attrs_post_init__(self) -> None:
        """What SGLang refuses whatever the engine (0.5.23, srt/arg_groups/validation_hook.py)."""
        if self.enable_priority_scheduling and self.schedule_policy not in ("fcfs", "lof"):
            raise ValueError(f"enable_priority_scheduling needs a schedule_policy of 'fcfs' or 'lof', not"
                             f" {self.schedule_policy!r}; set one of them, or leave it out")
        if self.retraction_policy == "priority" and not self.enable_priority_scheduling:
            raise ValueError("retraction_policy = 'priority' requires enable_priority_scheduling; set it, or leave"
                             " 'length'")

    def on_rank(self, ranks: int) -> "SglangSettings":
        """What the scheduler of one of so many *ranks* of data-parallel attention has."""
        if ranks == 1:
            return self
        chunk, most = self.chunked_prefill_size, self.max_running_requests
        return evolve(
            self, chunked_prefill_size=chunk if chunk is None or chunk == -1 else max(1, chunk // ranks),
            max_running_requests=None if most is None else max(1, most // ranks),
            schedule_conservativeness=self.schedule_conservativeness * RANKS_CONSERVATIVENESS)
