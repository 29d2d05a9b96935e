"""The numbers that only runs with a feature have: of a gateway, of LoRA adapters, and of KV beyond the GPUs."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from attrs import define, field

from ksim.flow.events import AdapterLoaded, Copied, EngineBuilt
from ksim.flow.log import Log
from ksim.results.history import tiers_of
from ksim.results.numbers import Summary
from ksim.results.requests import Requests
from ksim.results.steps import Bools, Floats, Ints, ratio


@define
class _Counts:
    """Requests of a tenant, or of all: by how they ended, how often they were sent, and how long they were held."""

    requests: int = 0
    completed: int = 0
    rejected: int = 0
    attempts: int = 0
    held: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def add(self, requests: Requests, which: Bools, sent: Ints, waits: Floats) -> None:
        self.requests += int(which.sum())
        self.completed += int((which & requests.completed).sum())
        self.rejected += int((which & ~np.isnan(requests.rejected)).sum())
        self.attempts += int(sent[which].sum())
        self.held += int((waits[which] > 0).sum())
        self.seconds += float(waits[which].sum())
        self.longest = max(self.longest, float(waits[which].max(initial=0.0)))

    def summary(self) -> Summary:
        """Its numbers, as summary.json has them."""
        mean = ratio(self.seconds, self.held)
        return {"rejected": self.rejected, "attempts": self.attempts, "retries": self.attempts - self.requests,
                "held_requests": self.held, "mean_held_ms": None if mean is None else 1e3 * mean,
                "max_held_ms": 1e3 * self.longest if self.held else None}


@define
class GatewayTotals:
    """The totals of the requests added so far, and those of each tenant."""

    whole: _Counts = field(factory=_Counts)
    tenants: dict[str, _Counts] = field(factory=dict)

    def add(self, requests: Requests, which: Bools) -> None:
        """Add the requests in *which*."""
        sent, waits, names = requests.attempts, requests.held, requests.names("tenant")
        self.whole.add(requests, which, sent, waits)
        for name in dict.fromkeys(names[which].tolist()):
            self.tenants.setdefault(name, _Counts()).add(requests, which & (names == name), sent, waits)

    def summary(self) -> Summary:
        """The numbers of summary.json that runs with a gateway have; tenants only where requests name some."""
        named = {name: {"requests": counts.requests, "completed": counts.completed, **counts.summary()}
                 for name, counts in sorted(self.tenants.items())}
        return {**self.whole.summary(), **({"tenants": named} if set(named) - {""} else {})}


def gateway_summary(requests: Requests) -> Summary:
    """The numbers of summary.json that runs with a gateway have."""
    totals = GatewayTotals()
    totals.add(requests, np.ones(len(requests), dtype=bool))
    return totals.summary()


def adapter_summary(log: Log) -> Summary:
    """The numbers of summary.json that runs with adapters have; none of other runs."""
    if not any(built.max_loras for built in log.engines):
        return {}
    loads = log.columns(AdapterLoaded)
    return {
        "max_lora": max(built.max_loras for built in log.engines),
        "lora_loads": len(loads["time"]),
        "lora_reads": int(loads["read"].sum()),
        "lora_load_seconds": float(loads["seconds"].sum()),
    }


@define(eq=False)
class Copies:
    """Copies by where they came from and went: how many, their bytes, and the seconds that each took."""

    counts: dict[tuple[str, str], int] = field(factory=lambda: defaultdict(int))
    bytes: dict[tuple[str, str], float] = field(factory=lambda: defaultdict(float))
    seconds: dict[tuple[str, str], float] = field(factory=lambda: defaultdict(float))

    @classmethod
    def of(cls, log: Log) -> "Copies":
        """All copies of a run."""
        made = cls()
        for event in log.of(Copied):
            made.add(event)
        return made

    def add(self, event: Copied) -> None:
        """Count one copy."""
        way = event.source, event.target
        self.counts[way] += 1
        self.bytes[way] += event.bytes
        self.seconds[way] += event.time - event.began


def tier_summary(engines: Iterable[EngineBuilt], copies: Copies) -> Summary:
    """The numbers of summary.json that runs with tiers have, by the names of vLLM's metrics; none of other runs."""
    tiers = tiers_of(engines)
    if not tiers:
        return {}
    made: Summary = {}
    for name, way in (("load", ("cpu", "gpu")), ("store", ("gpu", "cpu"))):
        made |= {f"kv_offload_{name}s": copies.counts[way], f"kv_offload_{name}_bytes": copies.bytes[way],
                 f"kv_offload_{name}_time": copies.seconds[way]}
    for tier in tiers[1:]:
        made |= {f"{tier}_read_bytes": copies.bytes[tier, "cpu"], f"{tier}_write_bytes": copies.bytes["cpu", tier]}
    return made
