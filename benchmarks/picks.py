"""Which of the deployments that others have measured does ksim pick as the best, and which does another simulator?

`python -m benchmarks.picks FOLDER` compares runs of one model with the same lengths on the same GPUs.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import fmean

import numpy as np
from attrs import frozen

from benchmarks.findings import Sheet
from benchmarks.planning import closed
from benchmarks.research.silicon import Question, Row, chosen, scenario
from benchmarks.research.silicon.rows import recipes, reference
from benchmarks.research.silicon.runs import answer
from ksim.foundation.errors import KsimError
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from ksim.study.planning.estimate import station
from ksim.study.planning.step_prices import LoadSample, StepPrices

#: The runs, and what another simulator says of them, in the folder of the public runs.
RUNS, BESIDE, OTHER = "silicon_dev.parquet", "aiconfigurator_predictions.parquet", "AIConfigurator"
#: Requests that tell the lengths of a run, and the shares of runs that keep a limit of TPOT.
_SAMPLE, _QUANTILES = 500, (0.25, 0.5, 0.75)

#: By how much TPOT differs where a run was repeated: 1 % at the median, 22 % at the 90th percentile of the public runs.
NOISE = 0.05

#: TTFT and TPOT in seconds.
Latencies = tuple[float, float]


@frozen
class Measured:
    """A measured run, its GPUs, and what each simulator says of it: `said` has the latencies by name."""

    row: Row
    gpus: int
    said: Mapping[str, Latencies]

    def rate(self, times: Latencies) -> float:
        """Output tokens per second and GPU by Little's law: in a closed loop, all requests are in flight."""
        ttft, tpot = times
        return self.row.concurrency * self.row.output / (ttft + (self.row.output - 1) * tpot) / self.gpus

    @property
    def measured(self) -> Latencies:
        return self.row.ttft, self.row.tpot


@frozen
class Picked:
    """A choice: the measured value of what was picked over that of the best, 0.0 where it misses a limit."""

    share: float
    kept: bool = True


def estimated(made: Scenario, concurrency: int) -> tuple[int, Latencies]:
    """The GPUs of *made*, and its latencies by `ksim plan`'s estimate; raises KsimError where there is none."""
    deployment = Deployment.of(made)
    drawn = [request for request, _ in zip(made.workload.requests(made.seed), range(_SAMPLE), strict=False)]
    prompts, outputs = (np.array([getattr(one, name) for one in drawn], dtype=np.float64)
                        for name in ("prompt", "output"))
    load = LoadSample(prompts, np.zeros_like(prompts), outputs)
    _, state = closed(station([deployment], StepPrices.of(deployment, load), load), concurrency)
    serve = deployment.serve
    return serve.gpus * serve.data_parallel_size, (float(state.ttft.mean()), float(state.tpot.mean()))


def measured(folder: Path, limit: int = 0, simulated: int = 0) -> Iterator[Measured]:
    """The runs of *folder* that may be compared, with what is said of each; *simulated* of them are played, too.

    They are whole engines without drafts, of which the other simulator has an answer.  *limit* takes so many groups.
    """
    other = reference(folder / BESIDE)
    rows = [row for row in chosen(Question(path=folder / RUNS, mode="agg"))
            if row.id in other and row.concurrency and row.speculation in ("", "none")]
    groups = [group for group in by(rows, lengths).values() if len({shape(row) for row in group}) > 1]
    groups.sort(key=lambda group: sha256(group[0].group.encode()).digest())
    for group in groups[:limit or None]:
        for row in group:
            try:
                gpus, times = estimated(scenario(row), row.concurrency)
            except KsimError:  # as no simulation of it could be made
                continue
            said = {OTHER: other[row.id], "estimate": times}
            if simulated > 0 and (played := answer(row)).ttft and played.tpot:
                said["simulation"] = played.ttft.mean, played.tpot.mean
            yield Measured(row, gpus, said)
        simulated -= 1


def shape(row: Row) -> tuple[object, ...]:
    """What tells deployments of a model apart."""
    return row.backend, row.precision, row.tensor, row.pipeline, row.attention_dp, row.moe_tp, row.moe_ep


def lengths(row: Row) -> tuple[object, ...]:
    """What runs have in common that may be compared at the same interactivity."""
    return recipes().model(row), row.system, row.prompt, row.output


def by(rows: Sequence[Row], key: Callable[[Row], tuple[object, ...]]) -> dict[tuple[object, ...], list[Row]]:
    """*rows* by *key*, in their order."""
    found = defaultdict[tuple[object, ...], list[Row]](list)
    for row in rows:
        found[key(row)].append(row)
    return found


def same_load(runs: Sequence[Measured], name: str, of_gpu: bool = False) -> Iterator[Picked]:
    """Of deployments with as many requests in flight, the one that *name* says has the most tokens *of* a *GPU*, or
    else in all, which is the one that answers the fastest."""
    for group in _groups(runs, lambda row: (*lengths(row), row.concurrency), name):
        values = [1 if of_gpu else one.gpus for one in group]
        said, true = ([count * one.rate(times) for count, one, times in zip(values, group, given, strict=True)]
                      for given in ([one.said[name] for one in group], [one.measured for one in group]))
        yield Picked(true[int(np.argmax(said))] / max(true))


def same_interactivity(runs: Sequence[Measured], name: str, noise: float = 0.0) -> Iterator[Picked]:
    """Of runs whose TPOT is within a limit, the one that *name* says has the most tokens per GPU.

    A limit counts as kept where it is missed by no more than the share *noise*.
    """
    for group in _groups(runs, lengths, name):
        for limit in np.quantile([one.row.tpot for one in group], _QUANTILES):
            within = [one for one in group if one.said[name][1] <= limit] or [
                min(group, key=lambda one: one.said[name][1])]
            best, most = max(within, key=lambda one: one.rate(one.said[name])), (1 + noise) * limit
            kept = bool(best.row.tpot <= most)
            share = best.rate(best.measured) / max(one.rate(one.measured) for one in group if one.row.tpot <= most)
            yield Picked(share if kept else 0.0, kept)


def _groups(runs: Sequence[Measured], key: Callable[[Row], tuple[object, ...]], name: str) -> Iterator[list[Measured]]:
    """The runs of which *name* says something, where there are several deployments to choose from."""
    known = {one.row.id: one for one in runs if name in one.said}
    for rows in by([one.row for one in known.values()], key).values():
        if len({shape(row) for row in rows}) > 1:
            yield [known[row.id] for row in rows]


VIEWS: Mapping[str, Callable[[Sequence[Measured], str], Iterator[Picked]]] = {
    "as many requests in flight: the fastest answers": same_load,
    "as many requests in flight: the most tokens per GPU": partial(same_load, of_gpu=True),
    "a limit of TPOT: the most tokens per GPU": same_interactivity,
    f"the same, where a limit that is missed by {100 * NOISE:g} % counts as kept": partial(same_interactivity,
                                                                                      noise=NOISE)}


def sheet(runs: Sequence[Measured]) -> Sheet:
    """How good the picks of each simulator are, on the same runs; with simulations, on those that were simulated."""
    rows = []
    for title, view in VIEWS.items():
        for names in ((OTHER, "estimate"), (OTHER, "estimate", "simulation")):
            both = [one for one in runs if set(names) <= one.said.keys()]
            for name in names:
                picks = [*view(both, name)]
                if picks:
                    rows.append([title, f"{len(both)} runs", _shown(name), str(len(picks)), *_scores(picks)])
    return Sheet("Picks of the best deployment among public runs", ("choice", "among", "by", "choices", "best picked",
                 "limit kept", "measured over the best, mean", "worst tenth"), rows)


def _shown(name: str) -> str:
    return name if name == OTHER else f"ksim, {name}"


def _scores(picks: Sequence[Picked]) -> list[str]:
    shares = [pick.share for pick in picks]
    return [f"{100 * fmean(share > 1 - 1e-9 for share in shares):.0f} %",
            f"{100 * fmean(pick.kept for pick in picks):.0f} %", f"{100 * fmean(shares):.1f} %",
            f"{100 * float(np.quantile(shares, 0.1)):.0f} %"]


def main(arguments: Sequence[str]) -> None:
    """Print the picks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picks",
                                     description="Which of public runs are picked as the best?")
    parser.add_argument("folder", type=Path, help="the public runs, with what another simulator says of them")
    parser.add_argument("--groups", type=int, default=0, help="so many groups of comparable runs, by default all")
    parser.add_argument("--simulate", type=int, default=0, help="so many groups are simulated, too")
    options = parser.parse_args(arguments)
    print("\n".join(sheet([*measured(options.folder, options.groups, options.simulate)]).markdown()))


if __name__ == "__main__":
    main(sys.argv[1:])
