"""Simulate an arm of a ladder, and measure its stages as the generator does."""

from collections.abc import Mapping

import numpy as np
from attrs import field, frozen

from ksim.foundation.errors import KsimError
from ksim.results.requests import Requests
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play
from ksim.validation.ladders import setups
from ksim.validation.ladders.loads import Load
from ksim.validation.ladders.setups import NotRun, Setup

#: Percentiles that tables of ladders have.
_PERCENTILES = (50, 90, 95, 99)
Values = Mapping[str, float]


@frozen
class Arm:
    """What was predicted of an arm: of each stage, by its rate, and of the whole run; or the `reason` why nothing."""

    name: tuple[str, str, str]
    reason: str = ""
    stages: Mapping[float, Values] = field(factory=dict)
    whole: Values = field(factory=dict)


def predict(name: tuple[str, str, str]) -> Arm:
    """Simulate the arm called *name*."""
    try:
        setup = setups.setup_of(*name)
        assert setup.load, "an arm without a reason has a load"
        result = play(Fleet.of(setups.scenario(setup)), setup.load.requests(seed=0))
        return _measured(name, setup, setup.load, result.history.requests)
    except NotRun as why:
        return Arm(name, str(why))
    except KsimError as error:
        return Arm(name, f"{type(error).__name__}: {error}")


def _measured(name: tuple[str, str, str], setup: Setup, load: Load, requests: Requests) -> Arm:
    stages, spans, first = {}, [], 0
    starts = [*load.starts(), np.inf]
    for stage, count in enumerate(load.counts):
        rows = slice(first, first + count)
        ended = requests.finished[rows]
        if np.nanmax(ended, initial=0.0) > starts[stage + 1]:
            raise NotRun(f"a stage at {load.rates[stage]:g} requests/s has not ended when the next one starts")
        spans.append(float(np.nanmax(ended) - requests.arrival[rows][0]))
        stages[load.rates[stage]] = measures(requests, rows, spans[-1])
        first += count
    whole = sum(spans) + setup.pause * (len(spans) - 1)
    return Arm(name, "", stages, measures(requests, slice(None), whole))


def measures(requests: Requests, rows: slice, span: float) -> Values:
    """What a table of ladders has, of requests that were served in *span* seconds, drain included."""
    done = requests.completed[rows]
    values = {"req_s": float(done.sum()) / span, "out_tok_s": float(requests.output[rows][done].sum()) / span}
    for label, unit, scale in (("ttft", "s", 1.0), ("e2e", "s", 1.0), ("tpot", "ms", 1e3)):
        column = scale * getattr(requests, label)[rows][done]
        column = column[~np.isnan(column)]
        values[f"{label}_mean_{unit}"] = float(column.mean())
        values |= {f"{label}_p{share}_{unit}": float(np.percentile(column, share)) for share in _PERCENTILES}
    return values
