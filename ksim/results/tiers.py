"""What a run says of KV beyond the GPUs: tokens and bytes by tier."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from attrs import define, field

from ksim.flow.copied import TIERS, Copied
from ksim.flow.events import Admitted, EngineBuilt, Event
from ksim.flow.log import Columns, Log
from ksim.results.arrays import Floats, Ints, sums

__all__ = ["Copies", "loaded_tokens", "loading_seconds", "tier_summary", "tiers_of"]


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
