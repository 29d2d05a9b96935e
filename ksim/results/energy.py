"""The energy of a run for summary.json: of requests and sessions, by phase, with its interval.

docs/energy.md says how joules are shared.
"""

from collections.abc import Sequence

import numpy as np

from ksim.flow.events import EngineBuilt
from ksim.results.arrays import Bools, Floats, codes, product, ratio, shares, sums
from ksim.results.attribution.energy import Energy
from ksim.results.history import History
from ksim.results.metrics import Summary
from ksim.results.steps import Steps

PERCENTILES = (90, 99)


def _statistics(name: str) -> list[str]:
    return [f"{statistic}_{name}_joules" for statistic in ("mean", "median", *(f"p{q}" for q in PERCENTILES))]


KEYS = ("energy_joules_low", "energy_joules_high", "prefill_energy_joules", "decode_energy_joules",
        "idle_energy_joules", "unattributed_energy_joules", *_statistics("energy_to_first_token"),
        *_statistics("energy_per_output_token"), *_statistics("energy_per_request"), "sessions",
        "mean_energy_per_session_joules", "p90_energy_per_session_joules")


def energy(spent: Energy) -> Summary:
    """The energy of a run, over completed requests; None for what the run cannot determine."""
    history, requests, steps = spent.history, spent.history.requests, spent.history.steps
    done, (first, after) = requests.completed, spent.requests.T
    several = done & (requests.output > 1)
    return {
        **interval(history.engines, history.static_joules, float(steps.joules.sum()),
                   product(steps.joules, steps.per_engine("reach"))),
        "prefill_energy_joules": spent.prefill,
        "decode_energy_joules": spent.decode,
        "idle_energy_joules": spent.idle,
        "unattributed_energy_joules": spent.unattributed,
        **_spread("energy_to_first_token", first[done]),
        **_spread("energy_per_output_token", shares(after, requests.output - 1)[several]),
        **_spread("energy_per_request", (first + after)[done]),
        **_sessions(spent.history, first + after, done),
    }


def interval(engines: Sequence[EngineBuilt], static: float, dynamic: float, off: float) -> Summary:
    """The 90 % interval of the sum of *static* and *dynamic* joules.

    Dynamic joules are *off* by so much, with all kernels erring together.  Static power is taken to be known.
    """
    known = off > 0 and all(built.reach > 0 for built in engines)
    low, high = (static + dynamic + side * off for side in (-1, 1))
    return {"energy_joules_low": low if known else None, "energy_joules_high": high if known else None}


def _spread(name: str, joules: Floats) -> Summary:
    """Mean, median and percentiles of *joules*."""
    keys = _statistics(name)
    if not len(joules):
        return dict.fromkeys(keys)
    values = [joules.mean(), np.median(joules), *np.percentile(joules, PERCENTILES)]
    return dict(zip(keys, map(float, values), strict=True))


def _sessions(history: History, joules: Floats, done: Bools) -> Summary:
    """Joules of the completed requests of each session."""
    asked = history.requests.requests
    named = [row for row in np.flatnonzero(done).tolist() if asked[row].session]
    numbers, sessions = codes(asked[row].session for row in named)
    found = sums(numbers, joules[named], len(sessions))
    return {
        "sessions": len(sessions),
        "mean_energy_per_session_joules": ratio(float(found.sum()), len(found)),
        "p90_energy_per_session_joules": float(np.percentile(found, 90)) if len(found) else None,
    }


def above_limit(steps: Steps) -> Floats:
    """The watts per GPU of the steps that draw more than their engine's limit, beyond rounding."""
    return steps.watts[steps.watts > 1.001 * steps.per_engine("limit_watts")]
