"""scenarios/tune.toml: 1,000 points, whose best six searches in ten find in at most 100 trials.

The grid of all points is in benchmarks/tune.json; `python -m benchmarks.tune --write` computes it anew.
"""

from itertools import islice

import pytest
from attrs import evolve

import ksim
from benchmarks import tune as example
from ksim.foundation.rng import stream

ANEW = "prices have changed: python -m benchmarks.tune --write"


@pytest.fixture(scope="module")
def begun():
    """The first two rounds of the search, which each propose what those before them taught."""
    return ksim.tune(example.SCENARIO, example.OBJECTIVE, subject_to=example.BOUNDS, space=example.SPACE, trials=16,
                     jobs=1)


def test_the_space_has_a_thousand_points():
    assert len(example.points()) == len(example.grid()) == 1000
    assert 100 < sum(map(example.counts, example.grid().values())) < 900


def test_a_search_on_runs_is_the_one_on_the_grid(begun):
    """What the grid teaches is what runs teach, so that the search goes on alike."""
    tried = sorted(begun.points, key=lambda point: begun.trial(point).number)
    assert [point.settings for point in tried] == [*islice(example.proposals(example.plan()), 16)], ANEW


def test_most_searches_find_the_best_of_the_grid_in_at_most_a_hundred_trials():
    """Of a hundred, six in ten (docs/sweep.md); a search by chance finds it in one of ten."""
    found = [example.found_after(evolve(example.plan(), search_seed=seed)) for seed in example.SEEDS[:12]]
    assert sum(number is not None and number <= example.TRIALS for number in found) >= 4


def test_the_grid_is_what_the_trials_gave(begun):
    for point in begun.points:
        told = example.grid()[example.name(point.settings)]
        if point.outcome.summary is not None:
            assert point.value(example.OBJECTIVE) == pytest.approx(told[0], rel=1e-6), ANEW


def test_the_best_its_neighbours_and_points_at_random_are_as_in_the_grid(begun):
    plan, space = example.plan(), example.plan().space
    best = next(settings for settings in example.points() if example.is_best(settings))
    drawn = stream(0, "points").choice(1000, 4, replace=False)
    known = [point.settings for point in begun.points]
    around = space.neighbours({axis.key: axis.proposed(best[axis.key]) for axis in space.dimensions})
    close = [best, *(space.settings(proposal) for proposal in around)]
    for settings in [*close, *(example.points()[place] for place in drawn)]:
        if settings not in known:
            told = example.grid()[example.name(settings)]
            assert example.values(evolve(plan, prune=False), settings) == (told and pytest.approx(told, rel=1e-6)), ANEW


def test_early_stops_save_work_and_no_stopped_point_would_have_counted():
    stopped = [name for name, told in example.grid().items() if told is not None and len(told) > len(example.KEYS)]
    assert len(stopped) > 300 and not any(example.counts(example.grid()[name]) for name in stopped)
    ended = [example.grid()[name][len(example.KEYS)] for name in stopped]
    assert sum(ended) / len(ended) < 80 / 4  # of 80 requests
