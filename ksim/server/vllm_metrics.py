"""The metrics of vLLM 0.33 that can be simulated: names, kinds, labels and buckets (v1/metrics of vLLM).

docs/server.md lists the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from attrs import define, field

from ksim.server.exposition import Bucketed, Count, MetricFamily

__all__ = ["EngineMetrics", "Families", "token_buckets"]


_SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
            960.0, 1920.0, 7680.0)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                80.0, 160.0, 640.0, 2560.0)
_NEXT_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
               80.0)
_STEP_TOKENS = tuple(float(1 << power) for power in (0, *range(3, 15)))
_PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_SEQUENCES = (1.0, 2.0, 5.0, 10.0, 20.0)
_TRANSFER_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_TRANSFER_BYTES = tuple(float(1 << power) for power in range(11, 35, 2))

#: Gauges and counters by name: the description, and a further label with its values.
GAUGES: Mapping[str, tuple[str, Mapping[str, Sequence[str]]]] = {
    "num_requests_running": ("Requests in the batches of the engine.", {}),
    "num_requests_waiting": ("Requests in the engine's queue.", {}),
    "num_requests_waiting_by_reason": ("Requests in the queue: for want of capacity, or deferred until a transfer ends"
                                       " or an adapter has a slot.", {"reason": ("capacity", "deferred")}),
    "engine_sleep_state": ("Always awake: simulated engines do not sleep.",
                           {"sleep_state": ("awake", "weights_offloaded", "discard_all")}),
    "kv_cache_usage_perc": ("The share of KV blocks in use, 1 for all.", {}),
}
COUNTERS: Mapping[str, tuple[str, Mapping[str, Sequence[str]]]] = {
    "prefix_cache_queries": ("Tokens of requests that were looked up in the prefix cache.", {}),
    "prefix_cache_hits": ("Tokens that the lookups found.", {}),
    "external_prefix_cache_queries": ("Tokens that a KV connector was asked for.", {}),
    "external_prefix_cache_hits": ("Tokens that a KV connector had.", {}),
    "mm_cache_queries": ("Images that were looked up in the front end's cache, which is not simulated: 0.", {}),
    "mm_cache_hits": ("Images found there: 0.", {}),
    "num_preemptions": ("Preemptions.", {}),
    "prompt_tokens": ("Tokens of prompts that were prefilled.", {}),
    "prompt_tokens_by_source": ("The same by where their KV came from.",
                                {"source": ("local_compute", "local_cache_hit", "external_kv_transfer")}),
    "prompt_tokens_cached": ("Tokens of prompts whose KV was there already.", {}),
    "prompt_tokens_cached_by_source": ("Tokens found at admission, by the tier that had them.",
                                       {"source": ("device", "host", "p2p", "disk", "external_unspecified")}),
    "generation_tokens": ("Tokens that were generated.", {}),
    "request_success": ("Requests that ended, by how.",
                        {"finished_reason": ("stop", "length", "abort", "error", "repetition")}),
}
#: Only for engines that draft tokens, or are part of a prefill-decode pair.
DRAFTS: Mapping[str, str] = {
    "spec_decode_num_drafts": "Drafts that were verified.",
    "spec_decode_num_draft_tokens": "Drafted tokens that were verified.",
    "spec_decode_num_accepted_tokens": "Drafted tokens that were accepted.",
}
TRANSFERS: Mapping[str, tuple[str, Sequence[float]]] = {
    "nixl_xfer_time_seconds": ("Seconds from the first byte of a request's KV to the last.", _TRANSFER_SECONDS),
    "nixl_bytes_transferred": ("Bytes of a request's KV.", _TRANSFER_BYTES),
}
_TOKENS: Sequence[float] = ()  # up to max_model_len
HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "request_prompt_tokens": ("Tokens of a request's prompt.", _TOKENS),
    "request_generation_tokens": ("Tokens that a request generated.", _TOKENS),
    "iteration_tokens_total": ("Tokens of an engine's step.", _STEP_TOKENS),
    "request_max_num_generation_tokens": ("The most tokens that a sequence of a request generated.", _TOKENS),
    "request_params_n": ("How many sequences a request asked for.", _SEQUENCES),
    "request_params_max_tokens": ("The max_tokens of a request.", _TOKENS),
    "time_to_first_token_seconds": ("Seconds from a request's arrival to its first token.", _FIRST_TOKEN),
    "inter_token_latency_seconds": ("Seconds from one step that yields tokens of a request to the next.", _NEXT_TOKEN),
    "request_time_per_output_token_seconds": ("Seconds of decoding by token after the first, by request.",
                                              _NEXT_TOKEN),
    "e2e_request_latency_seconds": ("Seconds from a request's arrival to its last token.", _SECONDS),
    "request_queue_time_seconds": ("Seconds in the queue before the first admission.", _SECONDS),
    "request_inference_time_seconds": ("Seconds from the first admission to the last token.", _SECONDS),
    "request_prefill_time_seconds": ("Seconds from the first admission to the first token.", _SECONDS),
    "request_decode_time_seconds": ("Seconds from the first token to the last.", _SECONDS),
    "request_num_preemptions": ("How often a request was preempted.", _PREEMPTIONS),
    "request_prefill_kv_computed_tokens": ("Tokens of a request's prompt that were not cached.", _TOKENS),
}


def token_buckets(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... as far as *most*."""
    series = (float(digit * 10 ** power) for power in range(len(str(most))) for digit in (1, 2, 5))
    return tuple(bound for bound in series if bound <= most)


@define(eq=False)
class Families:
    """The families of all engines' metrics, by their names without "vllm:"."""

    model_name: str
    max_model_len: int
    by_name: dict[str, MetricFamily] = field(factory=dict, init=False)

    def family(self, name: str, kind: str, description: str, bounds: Sequence[float] = ()) -> MetricFamily:
        """The family called *name*; a missing one is made."""
        return self.by_name.setdefault(name, MetricFamily(f"vllm:{name}", kind, description, bounds))

    def info(self, name: str, description: str, labels: Mapping[str, str]) -> None:
        """Publish *labels* with a gauge that is always 1."""
        self.family(name, "gauge", description).count(labels).value = 1

    def engine(self, number: int, drafted: int = 0, transfers: bool = False) -> "EngineMetrics":
        """The metrics of engine *number*, with those of speculation if it drafts tokens, and of KV *transfers*."""
        metrics = EngineMetrics(self, {"model_name": self.model_name, "engine": str(number)})
        metrics.add_samples()
        for name, description in DRAFTS.items() if drafted else ():
            metrics.add_counts(name, "counter", description)
        if drafted:
            metrics.add_counts("spec_decode_num_accepted_tokens_per_pos", "counter", "Accepted tokens by position.",
                               {"position": [str(place) for place in range(drafted)]})
        for name, (description, bounds) in TRANSFERS.items() if transfers else ():
            metrics.add_histogram(name, description, bounds)
        metrics.counts["engine_sleep_state", "awake"].value = 1
        return metrics


@define(eq=False)
class EngineMetrics:
    """The samples of one engine: `counts` by the name of the metric and the value of its further label, or ""."""

    families: Families
    labels: Mapping[str, str]
    counts: dict[tuple[str, str], Count] = field(factory=dict, init=False)
    histograms: dict[str, Bucketed] = field(factory=dict, init=False)

    def add_samples(self) -> None:
        """Make the samples that every engine has."""
        for kind, metrics in (("gauge", GAUGES), ("counter", COUNTERS)):
            for name, (description, further) in metrics.items():
                self.add_counts(name, kind, description, further)
        for name, (description, bounds) in HISTOGRAMS.items():
            self.add_histogram(name, description, bounds or token_buckets(self.families.max_model_len))

    def add(self, name: str, value: float = 1, label: str = "") -> None:
        """Add *value* to a counter."""
        self.counts[name, label].value += value

    def set(self, name: str, value: float, label: str = "") -> None:
        """Set a gauge to *value*."""
        self.counts[name, label].value = value

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Count *value* in a histogram so many *times*."""
        self.histograms[name].observe(value, times)

    def add_counts(self, name: str, kind: str, description: str,
                   further: Mapping[str, Sequence[str]] | None = None) -> None:
        """Make the samples of a gauge or a counter, one for each value of its *further* label."""
        family = self.families.family(name, kind, description)
        for value, labels in _labelled(further or {}):
            self.counts[name, value] = family.count({**self.labels, **labels})

    def add_histogram(self, name: str, description: str, bounds: Sequence[float]) -> None:
        """Make the sample of a histogram."""
        self.histograms[name] = self.families.family(name, "histogram", description, bounds).histogram(self.labels)


def _labelled(further: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for values in product(*further.values()):
        yield "".join(values), dict(zip(further, values, strict=True))
