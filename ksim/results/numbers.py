"""The numbers of a run: what each is called, its unit, its group, and whether more of it is better.

Every view takes titles, units and directions from here; docs/glossary.md says what each number means.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import astuple, evolve, field, frozen

#: The numbers of a run by key, None for unknown ones; and, by name, those of its pools.
Summary = dict[str, Any]

#: Whether more of a number is better, or less; 0 where that depends.
MORE, LESS = 1, -1
PERCENTILES = (50, 90, 95, 99)
#: The statistics of a latency that a run has, and those that reports show.
STATISTICS = ("mean", "median", "std", *(f"p{percent}" for percent in PERCENTILES))
REPORTED_STATISTICS = ("mean", *(f"p{percent}" for percent in PERCENTILES))
#: The latencies of a run by name, with their titles.
LATENCIES = {"ttft": "Time to first token", "tpot": "Time per output token", "itl": "Between two tokens",
             "e2el": "Arrival to last token", "queue": "In the queue"}
#: The latencies of a pool: to its first token, per token, in its queue, of its loads, and for room for these.
POOL_LATENCIES = ("ttft", "tpot", "queue", "xfer_time", "room")
#: The tables of the numbers of requests that are called alike, and what of a request names its row; their latencies.
GROUPS = {"workloads": "workload", "models": "model", "tenants": "tenant"}
GROUP_LATENCIES = ("ttft", "tpot", "e2el")
#: Latencies as titles of numbers have them, where that is not the name in capitals.
_BRIEF = {"queue": "queue", "xfer_time": "KV transfer", "room": "wait for room"}
#: The energies of a request by the middle of their keys, as titles have them.
_ENERGIES = {"energy_to_first_token": "J to 1st token", "energy_per_output_token": "J/output token after it",
             "energy_per_request": "J/request", "energy_per_session": "J/session"}


@frozen
class RunNumber:
    """A number of a run.

    `title` stands alone, `short` below the heading of its group; `scale` makes the title's unit of `unit`, which is the
    one that files have, as docs/glossary.md says it.
    """

    key: str
    title: str
    unit: str = ""
    better: int = 0
    short: str = ""
    scale: float = 1
    group: str = ""

    @property
    def is_share(self) -> bool:
        return self.unit == "share"

    @property
    def brief(self) -> str:
        """The title below the heading of its group."""
        return self.short or self.title


def latency_key(name: str, statistic: str) -> str:
    """The key of a *statistic* of the latency *name*, such as ``p99_ttft_ms``."""
    return f"{statistic}_{name}_ms"


def _latencies() -> Iterator[RunNumber]:
    for name in dict.fromkeys((*LATENCIES, *POOL_LATENCIES)):
        title = _BRIEF.get(name, name.upper())
        for statistic in STATISTICS:
            short = f"{title} {statistic}"
            yield RunNumber(latency_key(name, statistic), f"{short}, ms", "ms", LESS, short)


def _intervals() -> Iterator[RunNumber]:
    for statistic in ("median", "p99"):
        for name in ("ttft", "tpot"):
            for side in ("low", "high"):
                title = f"{name.upper()} {statistic}, {side} end, ms"
                yield RunNumber(f"{statistic}_{name}_{side}_ms", title, "ms", LESS)


def _energies() -> Iterator[RunNumber]:
    for name, title in _ENERGIES.items():
        for statistic in ("mean", "p90") if name == "energy_per_session" else ("mean", "median", "p90", "p99"):
            shown = (title, title) if statistic == "mean" else (f"{title}, {statistic}", f"  {statistic}")
            yield RunNumber(f"{statistic}_{name}_joules", shown[0], "J", LESS, shown[1])


_GB = 1e-9
_TIERS = {"cpu": "the host", "disk": "disks", "storage": "storage"}
#: The shares of GPU time that ranks wait for others, by cause (`ksim.flow.events.WAITS`), and what others have then.
RANK_WAITS = {cause: f"rank_wait_{cause}_share" for cause in ("requests", "experts", "clock", "host", "link")}
_LATER = {"requests": "longer batches", "experts": "fuller experts", "clock": "slower clocks", "host": "later hosts",
          "link": "slower links"}

_GROUPS: Mapping[str, tuple[RunNumber, ...]] = {
    "requests": (
        RunNumber("completed", "completed", "requests", MORE),
        RunNumber("failed", "failed", "requests", LESS),
        RunNumber("aborted", "aborted", "requests", LESS),
        RunNumber("num_failed", "failed", "requests", LESS),
        RunNumber("unfinished", "unfinished", "requests", LESS),
        RunNumber("duration", "seconds", "s", LESS),
        RunNumber("total_input_tokens", "prompt tokens", "tokens"),
        RunNumber("total_output_tokens", "output tokens", "tokens"),
        RunNumber("generated_tokens", "output tokens, unfinished ones included", "tokens"),
        RunNumber("sessions", "sessions")),
    "throughput": (
        RunNumber("request_throughput", "requests/s", "1/s", MORE),
        RunNumber("offered_request_rate", "requests/s offered", "1/s", 0, "  offered"),
        RunNumber("request_goodput", "requests/s within targets", "1/s", MORE, "  within targets"),
        RunNumber("slo_attainment", "share within targets", "share", MORE, "  share of them"),
        RunNumber("input_throughput", "prompt tokens/s", "tokens/s", MORE),
        RunNumber("output_throughput", "output tokens/s", "tokens/s", MORE),
        RunNumber("total_token_throughput", "all tokens/s", "tokens/s", MORE),
        RunNumber("max_output_tokens_per_s", "output tokens/s at most", "tokens/s", MORE),
        RunNumber("output_throughput_per_gpu", "output tokens/s per GPU", "tokens/s", MORE, "output t/s/GPU"),
        RunNumber("request_goodput_per_gpu", "goodput per GPU", "1/s", MORE, "goodput/GPU"),
        RunNumber("mean_concurrent_requests", "requests in flight", "requests", 0, "in flight"),
        RunNumber("max_concurrent_requests", "requests in flight at most", "requests", 0, "  at most")),
    "latency": (*_latencies(), *_intervals(),
                RunNumber("extrapolated_share", "GPU time that is extrapolated", "share", LESS)),
    "cache": (
        RunNumber("kv_cache_usage_mean", "KV cache, mean", "share"),
        RunNumber("kv_cache_usage_peak", "KV cache, peak", "share"),
        RunNumber("kv_cache_held_mean", "KV cache held for readers", "share", LESS, "  held for readers"),
        RunNumber("prefix_cache_hit_rate", "prefix hits", "share", MORE),
        *(RunNumber(f"{tier}_hit_rate", f"prefix hits from {place}", "share", MORE, f"  from {place}")
          for tier, place in _TIERS.items()),
        RunNumber("external_prefix_cache_queries", "tokens that the GPUs lacked", "tokens"),
        RunNumber("external_prefix_cache_hits", "tokens of these that were loaded", "tokens", MORE),
        RunNumber("kv_offload_loads", "KV loads"),
        RunNumber("kv_offload_stores", "KV stores"),
        RunNumber("kv_offload_load_bytes", "KV loaded, GB", "B", 0, "", _GB),
        RunNumber("kv_offload_store_bytes", "KV stored, GB", "B", 0, "", _GB),
        RunNumber("kv_offload_load_time", "seconds of KV loads", "s", LESS),
        RunNumber("kv_offload_store_time", "seconds of KV stores", "s", LESS),
        *(RunNumber(f"{tier}_{verb}_bytes", f"GB {verb} {what}", "B", 0, "", _GB)
          for tier, what in (("disk", "disks"), ("storage", "storage")) for verb in ("read", "write")),
        RunNumber("preemptions", "preemptions", "", LESS),
        RunNumber("recomputed_tokens", "recomputed tokens", "tokens", LESS)),
    "GPUs": (
        RunNumber("engines", "engines", "", LESS),
        RunNumber("gpus", "GPUs", "", LESS),
        RunNumber("mean_gpus", "GPUs allocated, mean", "GPUs", LESS),
        RunNumber("allocated_gpu_seconds", "GPU-hours allocated", "s", LESS, "", 1 / 3600),
        RunNumber("unused_gpu_seconds", "GPU-hours of nodes without a replica", "s", LESS, "", 1 / 3600),
        RunNumber("mean_replicas", "replicas, mean", "replicas", LESS),
        RunNumber("mean_warm_replicas", "warm replicas, mean", "replicas", LESS),
        RunNumber("replica_starts", "starts of replicas", "", LESS, "starts"),
        RunNumber("replica_drains", "drains of replicas", "", LESS, "drains"),
        RunNumber("scaling_decisions", "decisions of autoscalers", "", LESS, "decisions"),
        RunNumber("min_engines", "engines at least", "engines"),
        RunNumber("max_engines", "engines at most", "engines"),
        RunNumber("gpu_busy_share", "GPUs busy", "share", MORE, "busy"),
        RunNumber("host_share", "waiting for the CPU", "share", LESS, "waiting for CPU"),
        RunNumber("mfu", "of peak FLOP/s (MFU)", "share", MORE, "of peak FLOP/s"),
        RunNumber("mbu", "of peak bytes/s (MBU)", "share", MORE, "of peak bytes/s"),
        RunNumber("busy_mfu", "of peak FLOP/s while busy", "share", MORE),
        RunNumber("busy_mbu", "of peak bytes/s while busy", "share", MORE),
        RunNumber("steps", "steps"),
        RunNumber("mean_step_ms", "ms per step", "ms", LESS),
        RunNumber("mean_batch_tokens", "tokens per step", "tokens"),
        RunNumber("mean_batch_sequences", "sequences per step", "sequences"),
        RunNumber("mean_sm_clock_mhz", "SM clock, MHz", "MHz", MORE),
        RunNumber("throttled_share", "throttled", "share", LESS),
        RunNumber("above_limit_share", "above the power limit", "share", LESS),
        RunNumber("max_step_watts", "watts of a GPU at most", "W", LESS),
        RunNumber("rank_wait_share", "GPUs waiting for others", "share", LESS, "waiting for others"),
        *(RunNumber(key, f"GPUs waiting for {_LATER[cause]}", "share", LESS, f"  {_LATER[cause]}")
          for cause, key in RANK_WAITS.items()),
        RunNumber("engine_tokens_cv", "imbalance", "", LESS),
        RunNumber("engine_tokens_max_over_mean", "imbalance, maximum over mean", "", LESS)),
    "speculation": (
        RunNumber("spec_decode_num_drafts", "drafts"),
        RunNumber("spec_decode_num_draft_tokens", "drafted tokens", "tokens"),
        RunNumber("spec_decode_num_accepted_tokens", "accepted tokens", "tokens", MORE),
        RunNumber("spec_decode_acceptance_rate", "drafts accepted", "%", MORE),
        RunNumber("spec_decode_acceptance_length", "tokens per draft", "tokens", MORE)),
    "vision": (
        RunNumber("images", "images encoded"),
        RunNumber("encoder_tokens", "tokens of images", "tokens", 0, "  their tokens")),
    "adapters": (
        RunNumber("max_lora", "slots for adapters", "adapters"),
        RunNumber("lora_loads", "adapter loads", "", LESS),
        RunNumber("lora_reads", "adapters read from the disk", "", LESS, "  from the disk"),
        RunNumber("lora_load_seconds", "seconds of adapter loads", "s", LESS)),
    "fleet": (
        RunNumber("num_transfers", "KV transfers"),
        RunNumber("bytes_transferred", "GB transferred", "bytes", LESS, "", _GB),
        RunNumber("bytes_sent", "GB sent", "bytes", LESS, "", _GB),
        RunNumber("bytes_received", "GB received", "bytes", LESS, "", _GB),
        RunNumber("num_kv_expired_reqs", "leases that ended", "requests", LESS)),
    "gateway": (
        RunNumber("rejected", "rejected", "", LESS),
        RunNumber("attempts", "attempts", "", LESS),
        RunNumber("retries", "retries", "", LESS),
        RunNumber("held_requests", "requests held", "", LESS),
        RunNumber("mean_held_ms", "held, mean ms", "ms", LESS),
        RunNumber("max_held_ms", "held at most, ms", "ms", LESS)),
    "energy": (
        RunNumber("energy_joules", "kJ of GPUs", "J", LESS, "", 1e-3),
        RunNumber("energy_joules_low", "kJ of GPUs, low end", "J", LESS, "", 1e-3),
        RunNumber("energy_joules_high", "kJ of GPUs, high end", "J", LESS, "", 1e-3),
        RunNumber("static_energy_joules", "J static", "J", LESS, "static"),
        RunNumber("dynamic_energy_joules", "J of kernels", "J", LESS, "kernels"),
        RunNumber("prefill_energy_joules", "J of prefill", "J", LESS, "  prefill"),
        RunNumber("decode_energy_joules", "J of decode", "J", LESS, "  decode"),
        RunNumber("idle_energy_joules", "J between steps", "J", LESS, "  between steps"),
        RunNumber("unattributed_energy_joules", "J of no completed request", "J", LESS),
        RunNumber("host_energy_joules", "kJ of hosts and NICs", "J", LESS, "", 1e-3),
        RunNumber("facility_energy_joules", "kJ from the grid", "J", LESS, "", 1e-3),
        RunNumber("average_watts", "average watts", "W", LESS),
        RunNumber("tokens_per_joule", "output tokens/J", "1/J", MORE),
        *_energies(),
        RunNumber("joules_per_input_token", "J/prompt token", "J", LESS),
        RunNumber("joules_per_output_token", "J/output token", "J", LESS, "J/output token in all"),
        RunNumber("joules_per_million_tokens", "J/M tokens (prompt and output)", "J/10^6 tokens", LESS)),
    "cost": (
        RunNumber("carbon_grams", "gCO2e", "g", LESS),
        RunNumber("carbon_grams_per_request", "gCO2e per request", "g", LESS, "  per request"),
        RunNumber("carbon_grams_per_1k_output_tokens", "gCO2e per 1,000 output tokens", "g", LESS,
                  "  1,000 output tokens"),
        RunNumber("energy_dollars", "$ for energy", "$", LESS),
        RunNumber("gpu_dollars", "$ for GPUs", "$", LESS),
        RunNumber("dollars_per_million_input_tokens", "$/M prompt tokens", "$", LESS),
        RunNumber("dollars_per_million_output_tokens", "$/M output tokens", "$", LESS),
        RunNumber("usd_per_million_tokens", "$/M tokens (prompt and output)", "$/10^6 tokens", LESS)),
    "saturation": (
        RunNumber("waiting_at_last_arrival", "waiting at the last arrival", "requests", LESS),
        RunNumber("waiting_tokens_at_last_arrival", "tokens waiting at the last arrival", "tokens", LESS),
        RunNumber("sustainable_request_rate", "sustainable requests/s", "1/s", MORE),
        RunNumber("sustainable_request_rate_low", "sustainable requests/s, low end", "1/s", MORE),
        RunNumber("sustainable_request_rate_high", "sustainable requests/s, high end", "1/s", MORE)),
    "regret": (
        RunNumber("mean_regret_ms", "mean regret, ms", "ms", LESS),
        RunNumber("p99_regret_ms", "p99 regret, ms", "ms", LESS),
        RunNumber("mean_latency_regret_ms", "mean e2e regret, ms", "ms", LESS),
        RunNumber("p99_latency_regret_ms", "p99 e2e regret, ms", "ms", LESS)),
}

#: The numbers of summary.json, of its pools and of studies, by key.
NUMBERS: Mapping[str, RunNumber] = {
    row.key: evolve(row, group=group) for group, rows in _GROUPS.items() for row in rows}


#: The numbers that a report and a notebook show of a run, a page of its work, two runs beside each other, and pools.
#: Each view shows them in this order, as far as runs have them.
REPORTED: Mapping[str, tuple[str, ...]] = {
    "Throughput": (
        "request_throughput", "offered_request_rate", "request_goodput", "slo_attainment", "output_throughput",
        "total_token_throughput", "output_throughput_per_gpu", "request_goodput_per_gpu", "mean_concurrent_requests",
        "max_concurrent_requests"),
    "GPUs": (
        "mean_gpus", "gpu_busy_share", "host_share", "rank_wait_share", "mfu", "mbu", "steps", "mean_batch_tokens",
        "spec_decode_acceptance_rate",
        "spec_decode_acceptance_length", "images", "encoder_tokens"),
    "Autoscaling": (
        "scaling_decisions", "replica_starts", "replica_drains", "mean_replicas", "mean_warm_replicas",
        "allocated_gpu_seconds", "unused_gpu_seconds", "gpu_dollars"),
    "Cache": (
        "kv_cache_usage_mean", "kv_cache_usage_peak", "prefix_cache_hit_rate", *(f"{tier}_hit_rate" for tier in _TIERS),
        "kv_offload_load_bytes", "kv_offload_store_bytes", "preemptions", "lora_loads", "lora_reads"),
    "Energy": (
        "prefill_energy_joules", "decode_energy_joules", "idle_energy_joules", "static_energy_joules"),
    "Energy, mean": (
        "mean_energy_to_first_token_joules", "mean_energy_per_output_token_joules", "mean_energy_per_request_joules",
        "p99_energy_per_request_joules", "mean_energy_per_session_joules", "joules_per_output_token"),
    "Carbon and cost": (
        "carbon_grams", "carbon_grams_per_request", "carbon_grams_per_1k_output_tokens", "energy_dollars",
        "gpu_dollars", "dollars_per_million_output_tokens"),
}
IN_NOTEBOOKS = (
    "request_throughput", "request_goodput", "output_throughput", "gpu_busy_share", "kv_cache_usage_peak",
    "prefix_cache_hit_rate", "preemptions", "average_watts", "joules_per_output_token",
    "dollars_per_million_output_tokens")
OF_WORK = (
    "gpu_busy_share", "host_share", "mfu", "mbu", "steps", "mean_batch_tokens", "mean_step_ms", "kv_cache_usage_mean",
    "kv_cache_usage_peak", "prefix_cache_hit_rate", "preemptions", *REPORTED["Energy"][:3])
COMPARED = (
    "completed", "failed", "unfinished", "duration",
    "request_throughput", "output_throughput", "total_token_throughput", "request_goodput", "slo_attainment",
    "output_throughput_per_gpu", "request_goodput_per_gpu",
    "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_e2el_ms", "p99_e2el_ms",
    "prefix_cache_hit_rate", "kv_cache_usage_mean", "preemptions",
    "gpus", "mean_gpus", "gpu_busy_share", "mfu", "mbu", "rank_wait_share", *RANK_WAITS.values(),
    "num_transfers", "bytes_transferred", "num_kv_expired_reqs",
    "energy_joules", "joules_per_output_token", "average_watts",
    "energy_dollars", "gpu_dollars", "dollars_per_million_output_tokens", "carbon_grams")
_OF_POOLS = (
    "engines", "gpus", "mean_gpus", "min_engines", "max_engines", "mean_replicas", "mean_warm_replicas",
    "replica_starts", "replica_drains", "scaling_decisions", "request_throughput", "input_throughput",
    "output_throughput", "mean_ttft_ms", "p99_ttft_ms",
    "mean_tpot_ms", "p99_tpot_ms", "mean_queue_ms", "p99_queue_ms", "mean_room_ms", "mean_xfer_time_ms",
    "gpu_busy_share", "host_share", "mean_batch_tokens", "mean_batch_sequences", "kv_cache_usage_mean",
    "kv_cache_usage_peak", "kv_cache_held_mean", "prefix_cache_hit_rate", "preemptions", "num_failed", "bytes_sent",
    "bytes_received", "num_kv_expired_reqs", "average_watts", "joules_per_input_token", "joules_per_output_token",
    "dollars_per_million_input_tokens", "dollars_per_million_output_tokens")
#: Those of workloads, models and tenants.
_OF_GROUPS = (
    "completed", "failed", "unfinished", "total_input_tokens", "total_output_tokens", "request_throughput",
    "request_goodput", "slo_attainment", "output_throughput", "mean_ttft_ms", "p50_ttft_ms", "p99_ttft_ms",
    "mean_tpot_ms", "p50_tpot_ms", "p99_tpot_ms", "mean_e2el_ms", "p99_e2el_ms", "retries", "held_requests",
    "mean_held_ms", "max_held_ms")
#: Those of `_OF_POOLS` that are shown even where they are zero in all pools.
_ALWAYS_OF_POOLS = ("engines", "gpus", "gpu_busy_share", "host_share")
#: Those that the page of a study shows first, those by which a sweep names its best points, those that compare what
#: set-ups cost, and those of a comparison of routers: in its table, and in its figures.
OF_STUDIES = (
    "mean_latency_regret_ms", "mean_regret_ms", "usd_per_million_tokens", "joules_per_million_tokens",
    "request_throughput", "request_goodput", "slo_attainment", "output_throughput", "median_ttft_ms", "p99_ttft_ms",
    "median_tpot_ms", "p99_tpot_ms", "median_e2el_ms", "p99_e2el_ms", "joules_per_output_token", "average_watts",
    "gpus")
BEST_BY = (
    "p99_ttft_ms", "p99_tpot_ms", "median_e2el_ms", "output_throughput", "joules_per_million_tokens",
    "usd_per_million_tokens")
OF_COST = (
    "dollars_per_million_output_tokens", "joules_per_output_token", "usd_per_million_tokens",
    "joules_per_million_tokens")
OF_ROUTERS = (
    "mean_regret_ms", "p99_regret_ms", "mean_latency_regret_ms", "p50_ttft_ms", "p90_ttft_ms", "p99_ttft_ms",
    "p50_tpot_ms", "p90_tpot_ms", "p99_tpot_ms", "request_goodput", "output_throughput", "failed",
    "prefix_cache_hit_rate", *(f"{tier}_hit_rate" for tier in _TIERS), "engine_tokens_cv", "joules_per_output_token")
OF_AUTOSCALERS = ("p99_ttft_ms", "mean_gpus", "allocated_gpu_seconds", "energy_joules")
DRAWN_OF_ROUTERS = (
    "mean_regret_ms", "p90_ttft_ms", "prefix_cache_hit_rate", "p90_tpot_ms", "engine_tokens_cv",
    "joules_per_output_token")
#: Those by which the points of a sweep are compared with the first.
AGAINST_FIRST = (
    "completed", "failed", "request_throughput", "output_throughput", "slo_attainment", "mean_ttft_ms", "p99_ttft_ms",
    "mean_tpot_ms", "p99_tpot_ms", "mean_e2el_ms", "mean_batch_sequences", "kv_cache_usage_mean", "preemptions",
    "prefix_cache_hit_rate", "gpu_busy_share", "joules_per_output_token", "dollars_per_million_output_tokens")
#: The numbers that say what a cause of waiting costs.
OF_RANKS = ("mean_ttft_ms", "mean_tpot_ms", "output_throughput", "joules_per_output_token")
#: The numbers in the block that `vllm bench serve` prints, with its labels and formats.
IN_VLLM_BLOCK = (
    ("Successful requests:", "completed", ""),
    ("Failed requests:", "failed", ""),
    ("Maximum request concurrency:", "max_concurrency", ""),
    ("Request rate configured (RPS):", "request_rate", ".2f"),
    ("Benchmark duration (s):", "duration", ".2f"),
    ("Total input tokens:", "total_input_tokens", ""),
    ("Total generated tokens:", "total_output_tokens", ""),
    ("Request throughput (req/s):", "request_throughput", ".2f"),
    ("Request goodput (req/s):", "request_goodput", ".2f"),
    ("Output token throughput (tok/s):", "output_throughput", ".2f"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s", ".2f"),
    ("Peak concurrent requests:", "max_concurrent_requests", ".2f"),
    ("Total token throughput (tok/s):", "total_token_throughput", ".2f"),
)


def number_of(key: str) -> RunNumber:
    """The number at *key*, which may be that of a pool, such as ``pools.decode.mean_tpot_ms``.

    Numbers that a plug-in adds have their key as title.
    """
    return NUMBERS.get(key.rpartition(".")[2]) or RunNumber(key, key)


def pool_numbers(pools: Iterable[Summary]) -> list[RunNumber]:
    """The numbers that say something of one of these *pools*, in the order of tables."""
    summaries = list(pools)
    return [NUMBERS[key] for key in _OF_POOLS
            if key in _ALWAYS_OF_POOLS or any(pool.get(key) for pool in summaries)]


def group_numbers(rows: Iterable[Summary]) -> list[RunNumber]:
    """The numbers that say something of one of these workloads, models or tenants, in the order of tables."""
    summaries = list(rows)
    return [NUMBERS[key] for key in _OF_GROUPS if any(row.get(key) for row in summaries)]


def derived(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """What follows from *summary*: dollars and joules per million tokens, of input and output together.

    They are None where the run tells no costs, or has no tokens.
    """
    millions = (summary.get("total_input_tokens", 0) + summary.get("total_output_tokens", 0)) / 1e6
    costs = [cost for key in ("energy_dollars", "gpu_dollars") if (cost := summary.get(key)) is not None]
    return {"usd_per_million_tokens": sum(costs) / millions if costs and millions else None,
            "joules_per_million_tokens": summary["energy_joules"] / millions if millions else None}


@frozen
class LatencyTargets:
    """Latency targets in seconds, each optional: to the first token, per token after it, and to the last token.

    Those in `workloads` are of requests of a workload, by its name.
    """

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None
    workloads: Mapping[str, "LatencyTargets"] = field(factory=dict, hash=False)

    def __bool__(self) -> bool:
        return bool(self.set) or any(self.workloads.values())

    @property
    def set(self) -> dict[str, float]:
        """Those that are set, by name."""
        limits = {"ttft": self.ttft, "tpot": self.tpot, "e2el": self.e2el}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def of_workload(self, name: str) -> "LatencyTargets":
        """The targets of requests of the workload *name*."""
        return self.workloads.get(name, evolve(self, workloads={}))


@frozen
class CostRates:
    """Grams of CO2e and dollars per joule, and dollars per second of a GPU; None where not stated.

    `beside` is the power in watts that hosts and NICs draw for each GPU all the time.  `pue` is the energy of the
    data centre over that of its machines.
    """

    grams: float | None = None
    dollars: float | None = None
    gpu_dollars: float | None = None
    pue: float = 1.0
    beside: float = 0.0


def footprint(summary: dict[str, Any], rates: CostRates) -> dict[str, Any]:
    """The energy that the run of *summary* draws from the grid, its emissions and its cost at *rates*."""
    return _told(_Amounts.of(summary["energy_joules"], _gpu_seconds(summary, summary["duration"]), rates), summary)


def _gpu_seconds(summary: Mapping[str, Any], duration: float) -> float:
    """The seconds for which GPUs are paid, in a run or a pool that lasts for *duration*."""
    allocated: float = summary.get("allocated_gpu_seconds", summary["gpus"] * duration)
    return allocated


def fleet_footprint(summary: dict[str, Any], rates: CostRates, of_pools: Mapping[str, CostRates]) -> dict[str, Any]:
    """The same for a run with pools, each at its own rates, by its name, or else at *rates*; also pool by pool."""
    pools, parts = {}, []
    for name, pool in summary["pools"].items():
        gpu_seconds = _gpu_seconds(pool, summary["duration"])
        amounts = _Amounts.of(pool["energy_joules"], gpu_seconds, of_pools.get(name, rates))
        parts.append(amounts)
        millions = pool["total_input_tokens"] / 1e6
        pools[name] = {**pool, **_told(amounts, {**pool, "generated_tokens": pool["total_output_tokens"]}),
                       "dollars_per_million_input_tokens": _per(amounts.dollars, millions)}
    return {**_told(_Amounts.sum(parts), summary), "pools": pools}


@frozen
class _Amounts:
    """Joules of hosts and from the grid, grams of CO2e, and dollars for energy and for GPUs."""

    host: float
    drawn: float
    grams: float | None
    energy: float | None
    rent: float | None

    @classmethod
    def of(cls, joules: float, gpu_seconds: float, rates: CostRates) -> "_Amounts":
        host = rates.beside * gpu_seconds
        drawn = rates.pue * (joules + host)
        return cls(host, drawn, _times(rates.grams, drawn), _times(rates.dollars, drawn),
                   _times(rates.gpu_dollars, gpu_seconds))

    @classmethod
    def sum(cls, parts: Sequence["_Amounts"]) -> "_Amounts":
        """The sum of *parts*; None where one of them is unknown."""
        columns: list[Any] = list(zip(*map(astuple, parts), strict=True))
        added: list[Any] = [None if None in column else sum(column) for column in columns]
        return cls(*added)

    @property
    def dollars(self) -> float | None:
        stated = [cost for cost in (self.energy, self.rent) if cost is not None]
        return sum(stated) if stated else None


def _told(amounts: _Amounts, summary: Mapping[str, Any]) -> dict[str, Any]:
    thousands = summary["generated_tokens"] / 1e3
    return {
        "host_energy_joules": amounts.host,
        "facility_energy_joules": amounts.drawn,
        "carbon_grams": amounts.grams,
        "carbon_grams_per_1k_output_tokens": _per(amounts.grams, thousands),
        "carbon_grams_per_request": _per(amounts.grams, summary["completed"]),
        "energy_dollars": amounts.energy,
        "gpu_dollars": amounts.rent,
        "dollars_per_million_output_tokens": _per(amounts.dollars, thousands / 1e3),
    }


def _times(rate: float | None, amount: float) -> float | None:
    return None if rate is None else rate * amount


def _per(amount: float | None, whole: float) -> float | None:
    return amount / whole if amount is not None and whole else None
