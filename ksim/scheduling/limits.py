"""The limits an engine's scheduler keeps, all of them known."""

from attrs import field, frozen
from attrs.validators import ge, gt, lt

from ksim.foundation.errors import ConfigError


@frozen
class Limits:
    """The settings of vLLM's scheduler that decide schedules, by its own names, and where its versions differ.

    In older ones, the cap on a request's tokens binds one that is alone too, and
    a request that preempts itself ends the turn of those behind it.
    """

    max_num_batched_tokens: int = field(validator=gt(0))
    max_num_seqs: int = field(validator=gt(0))
    max_model_len: int = field(validator=gt(0))
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = field(default=0, validator=ge(0))
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = field(default=0.0, validator=(ge(0), lt(1)))
    prefill_schedule_interval: int = field(default=1, validator=gt(0))
    max_num_active_seqs: int | None = None
    cap_binds_lone_request: bool = False
    self_preemption_ends_turn: bool = False
    async_scheduling: bool = False
    pipeline_parallel_size: int = field(default=1, validator=gt(0))
    max_logprobs: int = field(default=20, validator=ge(-1))

    @property
    def depth(self) -> int:
        """How many batches may be in flight."""
        return self.pipeline_parallel_size + self.async_scheduling

    @property
    def active(self) -> int:
        """How many jobs may run at once."""
        return self.max_num_seqs if self.max_num_active_seqs is None else self.max_num_active_seqs

    def cap(self, live: int) -> int:
        """Most tokens that each of *live* jobs may compute in a step; 0 is no cap, as for a job that is alone."""
        cap = self.long_prefill_token_threshold if live > 1 or self.cap_binds_lone_request else 0
        fair = self.max_num_batched_tokens // live if cap and live and self.long_prefill_token_threshold_adaptive else 0
        return max(cap, fair)

    def check(self) -> None:
        """Refuse what vLLM refuses to start with; raises ConfigError."""
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError("max_num_batched_tokens", f"({self.max_num_batched_tokens}) must be greater than or equal"
                                                        f" to max_num_seqs ({self.max_num_seqs})")
        if self.active > self.max_num_seqs:
            raise ConfigError("max_num_active_seqs", f"({self.max_num_active_seqs}) cannot be greater than max_num_seqs"
                                                     f" ({self.max_num_seqs})")
        if self.long_prefill_token_threshold > self.max_model_len:
            raise ConfigError("long_prefill_token_threshold", f"({self.long_prefill_token_threshold}) cannot be greater"
                                                              f" than max_model_len ({self.max_model_len})")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError("max_num_batched_tokens", f"({self.max_num_batched_tokens}) is smaller than max_model_len"
                                                        f" ({self.max_model_len}); without chunked prefill, longer"
                                                        f" prompts could never be scheduled")
