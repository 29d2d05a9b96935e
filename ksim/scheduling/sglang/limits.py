"""The settings of SGLang's scheduler that decide schedules."""

from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge, gt, in_, optional

__all__ = ["INPUT_MARGIN", "SGLANG_ORDERS", "SglangLimits"]

#: The names of `schedule_policy`.
SGLANG_ORDERS = ("fcfs", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first", "lof", "random")
#: How much shorter than the longest request a prompt must be (srt/managers/tp_worker.py, max_req_input_len).
INPUT_MARGIN = 5
#: Up to so many places, an engine that decodes for another has twice as many extra rows, unless it is told how many.
MOST_DOUBLED = 32


@frozen(kw_only=True)
class SglangLimits:
    """The settings of SGLang's scheduler that decide schedules, by its own names."""

    max_running_requests: int = field(validator=gt(0))
    context_length: int = field(validator=gt(1))
    chunked_prefill_size: int = field(default=8192, validator=[ge(-1)])
    max_prefill_tokens: int = field(default=16384, validator=gt(0))
    max_queued_requests: int | None = field(default=None, validator=optional(ge(0)))
    enable_mixed_chunk: bool = False
    schedule_policy: str = field(default="fcfs", validator=in_(SGLANG_ORDERS))
    schedule_conservativeness: float = field(default=1.0, validator=gt(0))
    disable_overlap_schedule: bool = False
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    disable_priority_preemption: bool = False
    retraction_policy: str = field(default="length", validator=in_(("length", "priority")))
    prefill_max_requests: int | None = field(default=None, validator=optional(gt(0)))
    prefill_decode_interval: int | None = field(default=None, validator=optional(ge(0)))
    prefill_decode_interval_min_bs: int | None = field(default=None, validator=optional(ge(0)))
    min_free_slots_delay: int | None = field(default=None, validator=optional(gt(0)))
    scheduler_recv_interval: int = field(default=1, validator=gt(0))
    random_seed: int = 0
    num_reserved_decode_tokens: int = field(default=512, validator=ge(0))
    disaggregation_decode_extra_slots: int | None = field(default=None, validator=optional(ge(0)))
    disaggregation_decode_enable_radix_cache: bool = False
    max_logprobs: int = -1

    #: SGLang has no pipeline of batches within a scheduler here.
    pipeline_parallel_size: ClassVar[int] = 1

    @property
    def async_scheduling(self) -> bool:
        return not self.disable_overlap_schedule

    @property
    def depth(self) -> int:
        """How many batches may be in flight."""
        return 2 - self.disable_overlap_schedule

    @property
    def max_model_len(self) -> int:
        return self.context_length

    @property
    def max_num_batched_tokens(self) -> int:
        """Most tokens of a step."""
        return self.max_prefill_tokens if self.chunked_prefill_size < 0 else self.chunked_prefill_size

    @property
    def active(self) -> int:
        """How many jobs may run at once."""
        return self.max_running_requests

    @property
    def mixes(self) -> bool:
        """Whether decodes ride along with prompts, which takes prompts that are cut."""
        return self.enable_mixed_chunk and self.chunked_prefill_size > 0

    @property
    def preempts(self) -> bool:
        return self.enable_priority_scheduling and not self.disable_priority_preemption

    @property
    def min_free_slots(self) -> int:
        """How many places must be free for a batch of prompts while others decode; none if that is one."""
        slots = min(self.min_free_slots_delay or 0, self.max_running_requests)
        return slots if slots > 1 else 0

    @property
    def decode_rows(self) -> int:
        """How many jobs may hold memory of an engine that decodes for another."""
        extra, places = self.disaggregation_decode_extra_slots, self.max_running_requests
        return places + (2 * places * (places <= MOST_DOUBLED) if extra is None else extra)

    @property
    def sign(self) -> int:
        """By which priorities are multiplied so that the smaller come first."""
        return 1 if self.schedule_low_priority_values_first else -1

    def longest(self, pool: int) -> int:
        """Most tokens of a request in a pool of so many tokens."""
        return min(self.context_length - 1, pool - 1)

    def most_new(self, prompt: int, asked: int, pool: int, page: int) -> int:
        """How many of the *asked* output tokens a request with a *prompt* of so many tokens may have."""
        fitting = pool - -(-prompt // page) * page - page - 1
        return max(0, min(asked, self.longest(pool) - prompt - 1, fitting))
