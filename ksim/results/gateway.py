"""What a run says of its gateway: how often requests were refused and tried again, and how long they were held.

What a run says of LoRA adapters: how often they were loaded, from where, and how long workers took over that.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define, field

from ksim.flow.events import GONE_AFTER_REFUSAL, AdapterLoaded, Held, Refused
from ksim.flow.log import Log
from ksim.results.history import History
from ksim.results.requests import Requests
from ksim.results.steps import Bools, Floats, Ints, ratio, sums

__all__ = ["GatewayTotals", "attempts", "backed_off", "gateway_summary", "held", "adapter_summary", "has_adapters"]


def attempts(requests: Requests) -> Ints:
    """How often the client of each request sent it."""
    refused = requests.events[Refused]
    rows = requests.rows(refused["request_id"])
    sent = 1 + np.bincount(rows[~refused["last"]], minlength=len(requests))
    sent[[row for row, reason in requests.reasons.items() if reason == GONE_AFTER_REFUSAL]] -= 1
    return sent


def held(requests: Requests) -> Floats:
    """Seconds of each request in the queue of the gateway."""
    events = requests.events[Held]
    return sums(requests.rows(events["request_id"]), events["time"] - events["since"], len(requests))


def backed_off(requests: Requests) -> Floats:
    """Seconds in which the client of each request that was routed waited to send it again."""
    return np.maximum(requests.reached - requests.arrival - held(requests), 0.0)


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

    def summary(self) -> dict[str, Any]:
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
        sent, waits, names = attempts(requests), held(requests), _tenants(requests)
        self.whole.add(requests, which, sent, waits)
        for name in dict.fromkeys(names[which].tolist()):
            self.tenants.setdefault(name, _Counts()).add(requests, which & (names == name), sent, waits)

    def summary(self) -> dict[str, Any]:
        """The numbers of summary.json that runs with a gateway have; tenants only where requests name some."""
        named = {name: {"requests": counts.requests, "completed": counts.completed, **counts.summary()}
                 for name, counts in sorted(self.tenants.items())}
        return {**self.whole.summary(), **({"tenants": named} if set(named) - {""} else {})}


def gateway_summary(history: History) -> dict[str, Any]:
    """The same of a whole run; none of a run without a gateway."""
    if not history.log.gated:
        return {}
    totals = GatewayTotals()
    totals.add(history.requests, np.ones(len(history.requests), dtype=bool))
    return totals.summary()


def _tenants(requests: Requests) -> Any:
    asked: Sequence[Any] = requests.requests
    return np.array([request.tenant for request in asked], dtype=object)


def has_adapters(log: Log) -> bool:
    """Whether any engine of the run has slots for adapters."""
    return any(built.max_loras for built in log.engines)


def adapter_summary(log: Log) -> dict[str, Any]:
    """The numbers of summary.json that runs with adapters have; none of other runs."""
    if not has_adapters(log):
        return {}
    loads = log.columns(AdapterLoaded)
    return {
        "max_lora": max(built.max_loras for built in log.engines),
        "lora_loads": len(loads["time"]),
        "lora_reads": int(loads["read"].sum()),
        "lora_load_seconds": float(loads["seconds"].sum()),
    }
