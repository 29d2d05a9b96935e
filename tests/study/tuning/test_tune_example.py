"""scenarios/tune.toml: 1,000 points, whose best is found in at most 100 trials.

The grid of all points is in benchmarks/tune.json; `python -m benchmarks.tune --write` computes it anew.
"""

import pytest

import ksim
from benchmarks import tune as example
from ksim.foundation.rng import stream

ANEW = "prices have changed: python -m benchmarks.tune --write"


@pytest.fixture(scope="module")
def found():
    return ksim.tune(example.SCENARIO, example.OBJECTIVE, subject_to=example.BOUNDS, space=example.SPACE,
                     trials=80, jobs=1)  # the first of the hundred: ten rounds


def test_the_space_has_a_thousand_points():
    assert len(example.points()) == len(example.grid()) == 1000
    assert 100 < sum(map(example.counts, example.grid().values())) < 900


def test_the_best_of_the_grid_is_found_in_at_most_a_hundred_trials(found):
    assert len(found.points) <= example.TRIALS
    assert found.best.values[0] == pytest.approx(example.best(), rel=1e-6), ANEW
    assert found.trial(found.best).number == example.found_after(example.plan())


def test_the_grid_is_what_the_trials_gave(found):
    for point in found.points:
        told = example.grid()[example.name(point.settings)]
        if point.outcome.summary is not None:
            assert point.value(example.OBJECTIVE) == pytest.approx(told[0], rel=1e-6), ANEW


def test_the_neighbours_of_the_best_and_points_at_random_are_as_in_the_grid(found):
    plan, space = example.plan(), example.plan().space
    best = {axis.key: axis.proposed(found.best.outcome.settings[axis.key]) for axis in space.dimensions}
    drawn = stream(0, "points").choice(1000, 8, replace=False)
    around = [space.settings(proposal) for proposal in space.neighbours(best)]
    for settings in [*around, *(example.points()[place] for place in drawn)]:
        told = example.grid()[example.name(settings)]
        assert example.values(plan.scenario, settings) == (told and pytest.approx(told, rel=1e-6)), ANEW


def test_early_stops_save_work_and_no_stopped_point_would_have_counted():
    stopped = [name for name, told in example.grid().items() if told is not None and len(told) > len(example.KEYS)]
    assert len(stopped) > 300 and not any(example.counts(example.grid()[name]) for name in stopped)
    ended = [example.grid()[name][len(example.KEYS)] for name in stopped]
    assert sum(ended) / len(ended) < 80 / 4  # of 80 requests
