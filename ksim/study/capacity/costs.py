"""What a run at a steady rate makes and costs: tokens, joules and dollars, as if it went on for ever."""

from collections.abc import Mapping

import numpy as np

from ksim.results.history import History
from ksim.results.pools import pool_summaries
from ksim.results.steps import Bools
from ksim.results.tiers import fleet_footprint, footprint
from ksim.simulation.fleet import Fleet


def numbers(history: History, fleet: Fleet, good: Bools) -> Mapping[str, float]:
    """The numbers of a run, for the time in which its requests arrived: what its load takes to drain is left out.

    Dynamic joules are those of all its work; static ones, and GPUs' dollars, are those of that time.
    """
    requests, gpus = history.requests, history.gpus
    done = requests.completed
    outputs = float(requests.output[done].sum())
    tokens = float(requests.prompt[done].sum()) + outputs
    count, last = len(requests), float(requests.arrival[-1])
    seconds = last * count / max(1, count - 1)
    dynamic = float(history.steps.joules.sum())
    static = history.static_joules * seconds / history.duration if history.duration else 0.0
    millions, of_outputs = max(tokens, 1.0) / 1e6, max(outputs, 1.0) / 1e6
    told = {"gpus": float(gpus), "unserved_share": 1 - float(done.mean()),
            "request_goodput": float(good.sum()) / seconds,
            "total_token_throughput": tokens / seconds,
            "output_throughput": outputs / seconds,
            "joules_per_output_token": 1e-6 * (dynamic + static) / of_outputs,
            "joules_per_million_tokens": (dynamic + static) / millions}
    dollars = _dollars(history, fleet, dynamic + static, seconds)
    return told if dollars is None else {**told, "dollars_per_million_output_tokens": dollars / of_outputs,
                                         "usd_per_million_tokens": dollars / millions}


def _dollars(history: History, fleet: Fleet, joules: float, seconds: float) -> float | None:
    """What GPUs and energy cost; None where the scenario states neither."""
    amounts = {"energy_joules": joules, "gpus": history.gpus, "duration": seconds, "generated_tokens": 1,
               "completed": 1}
    if fleet.pool_rates:
        share = joules / max(float(history.steps.joules.sum()) + history.static_joules, 1e-300)
        pools = {name: {**pool, "energy_joules": share * pool["energy_joules"]}
                 for name, pool in pool_summaries(history).items()}
        told = fleet_footprint({**amounts, "pools": pools}, fleet.rates, fleet.pool_rates)
    else:
        told = footprint(amounts, fleet.rates)
    stated = [told[key] for key in ("energy_dollars", "gpu_dollars") if told[key] is not None]
    return float(np.sum(stated)) if stated else None
