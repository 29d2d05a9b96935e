"""Simulate an arm of a ladder, and measure its stages as the generator does."""

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import field, frozen

from ksim.foundation.errors import KsimError
from ksim.results.requests import Requests
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play
from ksim.validation.ladders import setups
from ksim.validation.ladders.loads import Load
from ksim.validation.ladders.rows import RATES
from ksim.validation.ladders.setups import NotRun, Setup

#: Percentiles that tables of ladders have.
_PERCENTILES = (50, 90, 95, 99)
Values = Mapping[str, float]
Name = tuple[str, str, str]


@frozen
class Arm:
    """What was predicted of an arm: of each stage, by its rate, of the whole run, and the stages' means; or the
    `reason` why nothing."""

    name: Name
    reason: str = ""
    stages: Mapping[float, Values] = field(factory=dict)
    whole: Values = field(factory=dict)
    means: Values = field(factory=dict)


def predict(question: tuple[Name, Sequence[Setup], int]) -> Arm:
    """Simulate the arm of this name, as one of these setups says, with the seed."""
    name, known, seed = question
    try:
        setup = setups.setup_of(name, known)
        assert setup.load, "an arm without a reason has a load"
        result = play(Fleet.of(setups.scenario(setup)), setup.load.requests(seed))
        return _measured(name, setup, setup.load, result.history.requests)
    except NotRun as why:
        return Arm(name, str(why))
    except KsimError as error:
        return Arm(name, f"{type(error).__name__}: {error}")


def _measured(name: Name, setup: Setup, load: Load, requests: Requests) -> Arm:
    stages, spans, first = {}, [], 0
    starts = [*load.starts(), np.inf]
    for place, stage in enumerate(load.plan):
        rows = slice(first, first := first + stage.count)
        ended = requests.finished[rows]
        if np.nanmax(ended, initial=0.0) > starts[place + 1]:
            raise NotRun(f"a stage at {stage.rate:g} requests/s has not ended when the next one starts")
        if stage.shown:
            spans.append(float(np.nanmax(ended) - requests.arrival[rows][0]))
            stages[stage.rate] = measures(requests, rows, spans[-1], load.answer)
    whole = sum(spans) + setup.pause * (len(spans) - 1)
    shown = slice(sum(stage.count for stage in load.plan if not stage.shown), None)
    counts = [stage.count for stage in load.plan if stage.shown]
    return Arm(name, "", stages, measures(requests, shown, whole, load.answer), _means(list(stages.values()), counts))


def _means(stages: Sequence[Values], counts: Sequence[int]) -> Values:
    """Rates: their plain mean over the stages.  Latencies: that of stages weighted by their requests."""
    return {name: float(np.average([stage[name] for stage in stages], weights=None if name in RATES else counts))
            for name in stages[0]}


def measures(requests: Requests, rows: slice, span: float, answer: float) -> Values:
    """What a table of ladders has, of requests that were served in *span* seconds, drain included.

    The generator counts *answer* tokens for each.
    """
    done = requests.completed[rows]
    count, prompts = float(done.sum()), float(requests.prompt[rows][done].sum())
    values = {"req_s": count / span, "out_tok_s": answer * count / span, "in_tok_s": prompts / span,
              "total_tok_s": (prompts + answer * count) / span}
    gaps = requests.output[rows][done] - 1
    streamed = (requests.e2e - requests.ttft)[rows][done]
    values["itl_mean_ms"] = 1e3 * float(streamed.sum() / gaps.sum())
    for label, unit, scale in (("ttft", "s", 1.0), ("e2e", "s", 1.0), ("tpot", "ms", 1e3)):
        column = scale * getattr(requests, label)[rows][done]
        column = column[~np.isnan(column)]
        values[f"{label}_mean_{unit}"] = float(column.mean())
        values |= {f"{label}_p{share}_{unit}": float(np.percentile(column, share)) for share in _PERCENTILES}
    return values
