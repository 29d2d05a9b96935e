"""What a run says of KV beyond the GPUs: tokens and bytes by tier.

Emissions and cost of a run, where the scenario states rates.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import astuple, define, field, frozen

from ksim.flow.events import TIERS, Admitted, Copied, EngineBuilt, Event
from ksim.flow.log import Columns, Log
from ksim.results.steps import Floats, Ints, ratio, sums

__all__ = ["Copies", "loaded_tokens", "loading_seconds", "tier_summary", "tiers_of", "Rates", "footprint",
           "fleet_footprint"]


def tiers_of(engines: Iterable[EngineBuilt]) -> list[str]:
    """The tiers below the GPU that any of *engines* has."""
    there = {tier for built in engines for tier in built.tiers}
    return [tier for tier in TIERS if tier in there]


def loaded_tokens(events: Mapping[type[Event], Columns], rows: Ints, admitted: Ints, count: int) -> dict[str, Ints]:
    """The tokens of each of *count* requests that were loaded from each tier at its first admission, whose lookup hit
    rates are about; *rows* are those of the copies, *admitted* those of the admissions."""
    copies, leading = events[Copied], np.zeros(count, np.int64)
    leading[admitted[::-1]] = events[Admitted]["sequence"][::-1]  # the sequence that was admitted first
    loads = (copies["target"] == "gpu") & ~copies["again"].astype(bool) & (copies["sequence"] == leading[rows])
    behind = {tier: sums(rows, np.where(loads, copies[tier], 0), count) for tier in TIERS[1:]}
    whole = sums(rows, np.where(loads, copies["tokens"], 0), count)
    return {tier: tokens.astype(np.int64) for tier, tokens in
            {TIERS[0]: whole - sum(behind.values(), np.zeros(count)), **behind}.items()}


def loading_seconds(events: Mapping[type[Event], Columns], rows: Ints, since: Floats, until: Floats) -> Floats:
    """For how long each request's KV was on its way up to the GPU, between these times; *rows* are those of the copies.

    A request waits for one copy after the other.
    """
    copies = events[Copied]
    upwards = (copies["target"] == "gpu") | ((copies["target"] == "cpu") & (copies["source"] != "gpu"))
    rows = rows[upwards]
    begin, end = np.fmax(copies["asked"][upwards], since[rows]), np.fmin(copies["time"][upwards], until[rows])
    return sums(rows, np.nan_to_num(np.maximum(end - begin, 0.0)), len(since))


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


def tier_summary(engines: Iterable[EngineBuilt], copies: Copies) -> dict[str, Any]:
    """The numbers of summary.json that runs with tiers have, by the names of vLLM's metrics; none of other runs."""
    tiers = tiers_of(engines)
    if not tiers:
        return {}
    made: dict[str, Any] = {}
    for name, way in (("load", ("cpu", "gpu")), ("store", ("gpu", "cpu"))):
        made |= {f"kv_offload_{name}s": copies.counts[way], f"kv_offload_{name}_bytes": copies.bytes[way],
                 f"kv_offload_{name}_time": copies.seconds[way]}
    for tier in tiers[1:]:
        made |= {f"{tier}_read_bytes": copies.bytes[tier, "cpu"], f"{tier}_write_bytes": copies.bytes["cpu", tier]}
    return made


@frozen
class Rates:
    """Grams of CO2e and dollars per joule, and dollars per second of a GPU; None where not stated.

    `beside` is the power in watts that hosts and NICs draw for each GPU all the time.  `pue` is the energy of the
    data centre over that of its machines.
    """

    grams: float | None = None
    dollars: float | None = None
    gpu_dollars: float | None = None
    pue: float = 1.0
    beside: float = 0.0


def footprint(summary: dict[str, Any], rates: Rates) -> dict[str, Any]:
    """The energy that the run of *summary* draws from the grid, its emissions and its cost at *rates*."""
    return _told(_Amounts.of(summary["energy_joules"], summary["gpus"] * summary["duration"], rates), summary)


def fleet_footprint(summary: dict[str, Any], rates: Rates, of_pools: Mapping[str, Rates]) -> dict[str, Any]:
    """The same for a run with pools, each at its own rates, by its name, or else at *rates*; also pool by pool."""
    pools, parts = {}, []
    for name, pool in summary["pools"].items():
        gpu_seconds = pool["gpus"] * summary["duration"]
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
    def of(cls, joules: float, gpu_seconds: float, rates: Rates) -> "_Amounts":
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
    return None if amount is None else ratio(amount, whole)
