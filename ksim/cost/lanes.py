"""The timelines of many steps as columns: totals of their plans, and of what fills the holes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import astuple, evolve

from ksim.cost.plan import Plan, Sums
from ksim.flow.filled import Filled, Fills
from ksim.flow.stretch import Lanes

#: What totals add up of spans.
_ADDED = ("seconds", "joules", "flops", "bytes", "low", "high", "core_joules", "busy_joules")


def lanes(plans: Sequence[Plan], filled: Sequence[Filled], inputs: Filled) -> Lanes:
    """Of steps with these *plans*, whose holes are *filled*, and which *inputs* begin."""
    steps = len(plans)
    places = {plan: place for place, plan in enumerate(dict.fromkeys(plans))}
    table = np.array([(*astuple(plan.sums, recurse=False), plan.launch_seconds) for plan in places])
    chosen = table[[places[plan] for plan in plans]].T
    sums = Sums(*chosen[:-1]).filled([(_everywhere(each, steps), each.repeat) for each in filled], inputs.seconds)
    spans = [*filled, inputs]
    return Lanes(
        [plan.laps for plan in plans], Fills(spans, steps), spans, [plan.launch for plan in plans],
        sums.seconds, sums.joules, sums.flops, sums.bytes, sums.low, sums.high, sums.extrapolated, sums.clocked,
        chosen[-1], sums.core_joules, sums.busy_joules, sums.clocked_joules)


def _everywhere(filled: Filled, steps: int) -> Filled:
    """The same with nothing in the steps that have none of it."""
    if len(filled) == steps:
        return filled
    wide: dict[str, Any] = {}
    for name in (*_ADDED, "extrapolated", "bound"):
        column = getattr(filled, name)
        wide[name] = np.zeros(steps, dtype=column.dtype)
        wide[name][filled.rows] = column
    return evolve(filled, **wide)
