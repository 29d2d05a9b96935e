"""`python -m benchmarks.tune [--write]`: how well `ksim tune` searches the space of scenarios/tune.toml.

The grid of all 1,000 points is computed, or read from a file that --write makes.  Then the search runs on its values
with a hundred seeds, for each sampler, and for each size of a round.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from attrs import evolve, frozen

from benchmarks.pages import put
from ksim.scenario.scenario import Scenario
from ksim.study.experiment import Outcome
from ksim.study.grid import Settings
from ksim.study.rows import OK, RunRow, SweepPoint
from ksim.study.tuning.plan import AT_STOP, TunePlan, goals, lesson_of
from ksim.study.tuning.search import OptunaSearch, play
from ksim.study.tuning.space import Space
from ksim.study.workers import HERE, in_order

ROOT = Path(__file__).parents[1]
SCENARIO, GRID, PAGE = ROOT / "scenarios/tune.toml", ROOT / "benchmarks/tune.json", Path("docs/sweep.md")
OBJECTIVE, BOUNDS = "usd_per_million_tokens", ("p99_ttft_ms<1500", "p99_tpot_ms<40")
SPACE = ("gpu=h100,h200,b200,l40s,rtx-pro-6000", "serve.tensor_parallel_size=1,2,4,8",
         "workload.max_concurrency=4,6,8,12,16,20,24,32,40,48", "serve.max_num_batched_tokens=256,512,1024,2048,4096")
TRIALS = 100
#: Not those from 0 to 19, with which the constants of `ksim.study.tuning.search` were chosen on this very space.
SEEDS = range(100, 200)
#: What of a run is kept in the grid; nothing of a point that cannot run.
KEYS = (OBJECTIVE, "p99_ttft_ms", "p99_tpot_ms")
STOPS = tuple(f"{AT_STOP}{key}" for key in ("requests", *KEYS))


@cache
def plan() -> TunePlan:
    """The search that the comment of the scenario shows."""
    return TunePlan(Scenario.read(SCENARIO), Space.parse(SPACE), goals([OBJECTIVE], subject_to=BOUNDS))


def values(unpruned: TunePlan, settings: Settings) -> list[float] | None:
    """The numbers of a point that the grid keeps: `KEYS`, and, where it would be stopped, those of `STOPS`."""
    row = play(unpruned, RunRow(1, 0, 0, settings))
    if row.status != OK:
        return None
    return [float(row.numbers[key] or 0.0) for key in (*KEYS, *(STOPS if STOPS[0] in row.numbers else ()))]


def points() -> list[Settings]:
    """All points of the space, in the order of the grid."""
    space = plan().space
    return [space.settings(proposal) for proposal in space.proposals()]


@cache
def grid() -> dict[str, list[float] | None]:
    """The numbers of every point, by its settings, as the file has them."""
    return dict(zip(map(name, points()), json.loads(GRID.read_text(encoding="utf-8")), strict=True))


def name(settings: Settings) -> str:
    return json.dumps([*settings.values()])


def counts(told: Sequence[float] | None) -> bool:
    """Whether a point with these numbers meets what is required."""
    numbers = dict(zip(KEYS, told or (), strict=False))
    return told is not None and not any(bound.missed(numbers) for bound in plan().goals.required)


@cache
def best() -> float:
    """The least objective of the points that count."""
    return min(told[0] for told in grid().values() if told is not None and counts(told))


def is_best(settings: Settings) -> bool:
    told = grid()[name(settings)]
    return told is not None and counts(told) and told[0] == best()


def proposals(tuned: TunePlan) -> Iterator[Settings]:
    """What a search on the values of the grid proposes, trial by trial."""
    search = OptunaSearch.of(tuned.space, tuned.sampler, tuned.search_seed, tuned.directions)
    while len(search.asked) < TRIALS:
        first = len(search.asked)
        for place, settings in enumerate(search.ask(min(tuned.round, TRIALS - first)), first):
            yield settings
            search.tell(place, lesson_of(_point(settings, grid()[name(settings)]), tuned))


def found_after(tuned: TunePlan) -> int | None:
    """In which trial a search on the values of the grid proposes the best point; None where it does not."""
    return next((trial for trial, settings in enumerate(proposals(tuned), 1) if is_best(settings)), None)


def _point(settings: Settings, told: Sequence[float] | None) -> SweepPoint:
    if told is None:
        return SweepPoint([RunRow(1, 0, 0, settings)], Outcome(settings))
    numbers = dict(zip((*KEYS, *STOPS), told, strict=False))
    return SweepPoint([RunRow(1, 0, 0, settings, numbers=numbers)], Outcome(settings, numbers))


@frozen
class Found:
    """In which trials the best point was found, over several seeds, and how often."""

    trials: tuple[int | None, ...]

    @classmethod
    def by(cls, tuned: TunePlan) -> "Found":
        return cls(tuple(found_after(evolve(tuned, search_seed=seed)) for seed in SEEDS))

    @property
    def texts(self) -> list[str]:
        known = sorted(trial for trial in self.trials if trial is not None)
        return [f"{len(known)} of {len(SEEDS)}", f"{median(known):.0f}" if known else "-",
                str(known[-1]) if known else "-"]


def comparison() -> Iterator[list[str]]:
    """How often each sampler finds the best point, and each size of a round."""
    for sampler, size in (("tpe", 1), ("tpe", 4), ("tpe", 8), ("tpe", 16), ("nsga2", 8), ("random", 8)):
        yield [sampler, str(size), *Found.by(evolve(plan(), sampler=sampler, round=size)).texts]


def write_grid() -> None:
    """Compute every point, in all processes there are."""
    todo = points()
    with HERE.workers() as pool:
        told: list[Any] = in_order(pool.run(partial(values, evolve(plan(), prune=False)), todo), len(todo))
    rows = ",\n".join(json.dumps(None if row is None else [float(f"{value:.9g}") for value in row]) for row in told)
    GRID.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    grid.cache_clear()
    best.cache_clear()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"compute the grid anew, and write the table to {PAGE}")
    if (options := parser.parse_args()).write:
        write_grid()
    columns = ["sampler", "round", "best found", "in trial (median)", "in trial (last)"]
    lines = [f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *comparison())]
    known = [told for told in grid().values() if told is not None]
    print(f"{len(grid()):,} points, of which {len(known)} run and {sum(map(counts, known))} count; best: {best():.4f}")
    print(*lines, sep="\n")
    if options.write:
        put(PAGE, "tune", lines)


if __name__ == "__main__":
    import_module("benchmarks.tune").main()  # processes look for what they run by the name of its module
