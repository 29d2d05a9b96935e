"""Totals of steps and requests: sums over parts of a run, which can be added up."""

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
from attrs import define, field, fields

from ksim.flow.events import GONE
from ksim.results.history import History
from ksim.results.requests import Requests
from ksim.results.steps import Bools, Floats, Ints, product, shares, sums


def _largest(one: Any, other: Any) -> Any:
    return np.maximum(one, other)


def _by_key(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


class Added:
    """Fields are added one by one, unless their metadata says otherwise."""

    def __add__(self, other: Any) -> Any:
        cls: Any = type(self)
        joined: dict[str, Any] = {}
        for each in fields(cls):
            one, two = getattr(self, each.name), getattr(other, each.name)
            how: Callable[[Any, Any], Any] | None = each.metadata.get("joined")
            joined[each.name] = how(one, two) if how else one + two
        return cls(**joined)


@define(eq=False)
class StepTotals(Added):
    """Totals of steps: seconds, tokens and sequences; FLOP, bytes and dynamic joules of all GPUs; GPU seconds.

    Dummy steps of data-parallel ranks without work add to all sums of GPUs, but not to `steps` or `seconds`.
    `kv_seconds` are weighted with the share of KV blocks in use.  `flops_possible` and `bytes_possible` are what GPUs
    could have done while they worked.  `reach` is how far the joules may be off, and `static` the static joules of
    the steps.  `extrapolated` counts GPU seconds of shapes outside what was measured.

    GPU seconds at a `known` clock add up to so many `cycles`; `slowed` ones are below the boost clock.  In those
    `above`, GPUs drew more than their limit at their lowest clock.  In the `hottest` step, a GPU drew so many watts.
    `drafts` tokens were drafted, and `verifications` counts the sequences that verified them and those that accepted 1,
    2, ... of them or more.
    By engine, `asleep` has the seconds asleep before its steps, and `ended` the end of its last step.
    """

    asleep: Floats
    ended: Floats = field(metadata={"joined": _largest})
    verifications: Ints
    drafts: int = 0
    images: int = 0
    encoder_tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    sequences: int = 0
    kv_seconds: float = 0.0
    kv_peak: float = field(default=0.0, metadata={"joined": max})
    flops: float = 0.0
    bytes: float = 0.0
    flops_possible: float = 0.0
    bytes_possible: float = 0.0
    gpu_seconds: float = 0.0
    host_seconds: float = 0.0
    joules: float = 0.0
    reach: float = 0.0
    static: float = 0.0
    extrapolated: float = 0.0
    known: float = 0.0
    cycles: float = 0.0
    slowed: float = 0.0
    above: float = 0.0
    hottest: float = field(default=0.0, metadata={"joined": max})

    @classmethod
    def of(cls, history: History, which: Bools) -> "StepTotals":
        """The totals of the steps in *which*."""
        steps, engines = history.steps, len(history.engines)
        working, of_gpus = which & (steps.tokens > 0), steps.gpu_seconds[which]
        seconds = (steps.end - steps.start)[working]
        images, encoder_tokens = steps.encoded[which].sum(axis=0).tolist()
        ended = np.zeros(engines)
        np.maximum.at(ended, steps.engine[which], steps.ended[which])
        return cls(
            verifications=steps.verifications[which].sum(axis=0), drafts=int(steps.drafts[which].sum()),
            asleep=sums(steps.engine[which], history.naps[which], engines), ended=ended, steps=int(working.sum()),
            seconds=float(seconds.sum()), tokens=int(steps.tokens[which].sum()),
            sequences=int((steps.decodes + steps.prefills)[which].sum()),
            kv_seconds=product(steps.kv_usage[working], seconds),
            kv_peak=float(steps.kv_usage[which].max(initial=0.0)),
            flops=float(steps.flops[which].sum()), bytes=float(steps.bytes[which].sum()),
            flops_possible=product(of_gpus, steps.per_engine("peak_flops")[which]),
            bytes_possible=product(of_gpus, steps.per_engine("peak_bandwidth")[which]),
            gpu_seconds=float(of_gpus.sum()), host_seconds=float((history.host_waits * steps.gpus)[which].sum()),
            joules=float(steps.joules[which].sum()),
            reach=product(steps.joules[which], steps.per_engine("reach")[which]),
            static=float(steps.static[which].sum()),
            images=images, encoder_tokens=encoder_tokens,
            **_of_stage_steps(history, which[steps.stage_step_rows]))


def _of_stage_steps(history: History, which: Bools) -> dict[str, float]:
    """Totals of stage steps.

    They are GPU seconds that are extrapolated, at a known clock, below the boost clock, and above the limit at the
    lowest clock; the cycles at a known clock; and the watts of a GPU in the hottest one.
    """
    steps, stage_steps = history.steps, history.steps.stage_steps
    clocks = stage_steps.scaling.clock
    known = which & ~np.isnan(clocks)
    seconds = stage_steps.seconds * steps.stage_ranks
    least, limit, static = (steps.per_engine(name)[steps.stage_step_rows]
                            for name in ("least_clock", "limit_watts", "static_watts"))
    watts = static + shares(stage_steps.joules, stage_steps.seconds)
    above = known & (clocks <= least * (1 + 1e-9)) & (watts > limit * (1 + 1e-3))
    return {"extrapolated": float((stage_steps.costs.extrapolated * steps.stage_ranks)[which].sum()),
            "known": float(seconds[known].sum()), "cycles": product(seconds[known], clocks[known]),
            "slowed": float(seconds[known & (stage_steps.scaling.energy < 1.0)].sum()),
            "above": float(seconds[above].sum()), "hottest": float(watts[which].max(initial=0.0))}


@define(eq=False)
class RequestTotals(Added):
    """Totals of requests: how they ended, and their tokens.  Those `aborted` are among the `failed` ones.

    `met` counts requests within the targets, out of the `met_asked` that ended.  `found` counts tokens found in the
    cache, of those `looked_up`, and `loaded` those that came from tiers below it.  There are also preemptions,
    recomputed tokens, and how many `arrived` between which times.
    """

    completed: int = 0
    failed: int = 0
    aborted: int = 0
    unfinished: int = 0
    prompts: int = 0
    outputs: int = 0
    generated: int = 0
    met: int = 0
    found: float = 0.0
    looked_up: float = 0.0
    loaded: dict[str, int] = field(factory=dict, metadata={"joined": _by_key})
    preemptions: int = 0
    recomputed: int = 0
    arrived: int = 0
    first_arrival: float = field(default=inf, metadata={"joined": min})
    last_arrival: float = field(default=-inf, metadata={"joined": max})

    @property
    def offered(self) -> float | None:
        """Arrivals per second from the first to the last; None if all arrive together."""
        span = self.last_arrival - self.first_arrival
        return (self.arrived - 1) / span if span > 0 else None

    @classmethod
    def of(cls, history: History, which: Bools, good: Bools) -> "RequestTotals":
        """The totals of the requests in *which*; *good* says which ones meet the targets."""
        requests = history.requests
        done, refused = requests.completed & which, requests.ended & ~requests.completed & which
        again = requests.readmitted
        of = which[requests.rows(again["request_id"])]
        return cls(
            completed=int(done.sum()), failed=int(refused.sum()), aborted=int((aborted(requests) & which).sum()),
            unfinished=int((which & ~done & ~refused).sum()),
            prompts=int(requests.prompt[done].sum()), outputs=int(requests.output[done].sum()),
            generated=int(requests.output[which].sum()), met=int((good & which).sum()),
            found=float(np.nansum(requests.cached[which])), looked_up=float(np.nansum(requests.known[which])),
            loaded={tier: int(tokens[which].sum()) for tier, tokens in history.loaded.items()},
            preemptions=int(requests.preemptions[which].sum()),
            recomputed=int((again["known"] - again["cached"])[of].sum()), arrived=int(which.sum()),
            first_arrival=float(requests.arrival[which].min(initial=inf)),
            last_arrival=float(requests.arrival[which].max(initial=-inf)))


def aborted(requests: Requests) -> Bools:
    """Requests whose clients went before their end."""
    found = np.zeros(len(requests), dtype=bool)
    found[[row for row, reason in requests.reasons.items() if reason.startswith(GONE)]] = True
    return found
