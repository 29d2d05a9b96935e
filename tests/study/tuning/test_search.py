"""The search: what it proposes, and in which order it learns."""

import pytest

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.study.tuning.plan import Lesson
from ksim.study.tuning.search import OptunaSearch
from ksim.study.tuning.space import Space

SPACE = Space.parse(["a=1,2,4,8", "b=1:10", "c=x,y,z,u,v", "d=0:4"])
SAMPLERS = ("tpe", "nsga2", "random")


def cost(point):
    return abs(point["a"] - 4) + abs(point["b"] - 7) + 3 * (point["c"] != "z") + point["d"]


def searched(name, rounds, size=8, seed=0, space=SPACE, lesson=lambda point: Lesson((cost(point),), {})):
    """The points that a search proposes, which learns of them after each round."""
    search, points = OptunaSearch.of(space, name, seed, ["minimize"]), []
    for _ in range(rounds):
        asked = search.ask(size)
        for number, point in enumerate(asked, len(points)):
            search.tell(number, lesson(point))
        points += asked
    return points


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_point_is_proposed_twice_and_a_seed_gives_the_same(name):
    points = searched(name, 8)
    assert len({tuple(point.values()) for point in points}) == 64
    assert searched(name, 8) == points != searched(name, 8, seed=1)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_finite_space_ends_when_all_of_it_was_proposed(name):
    space = Space.parse(["a=1,2,4", "b=x,y", "c=1"])
    points = searched(name, 3, space=space, lesson=lambda point: Lesson((point["a"],), {}))
    assert {tuple(point.values()) for point in points} == {(a, b, 1) for a in (1, 2, 4) for b in "xy"}
    assert len(points) == 6


def test_points_of_a_wide_space_differ_too():
    points = searched("tpe", 6, space=Space.parse(["a=1:1000000:log", "b=0.5:2"]),
                      lesson=lambda point: Lesson((point["a"],), {}))
    assert len({tuple(point.values()) for point in points}) == 48
    assert min(point["a"] for point in points[24:]) < 100


def test_a_search_finds_what_chance_does_not():
    best = {name: min(map(cost, searched(name, 10))) for name in ("tpe", "random")}
    assert best["tpe"] == 0 < best["random"]


def test_points_that_violate_a_constraint_and_points_that_fail_are_learned_from():
    def lesson(point):
        if point["c"] == "x":
            return Lesson((), {"failed": 1.0, "bound": 0.0})
        return Lesson((cost(point),), {"failed": 0.0, "bound": float(point["b"] - 5)})

    points = searched("tpe", 12, lesson=lesson)
    held = [point for point in points if point["b"] <= 5 and point["c"] != "x"]
    assert min(map(cost, held)) == 2
    assert sum(point["c"] == "x" for point in points[48:]) < 48 / 5  # of chance


def test_several_objectives_are_searched():
    search = OptunaSearch.of(SPACE, "tpe", 0, ["minimize", "maximize"])
    for start in range(0, 40, 8):
        for number, point in enumerate(search.ask(8), start):
            search.tell(number, Lesson((cost(point), point["a"]), {"bound": 0.0}))
    assert len({tuple(trial.params.values()) for trial in search.study.trials}) == 40


def test_samplers_that_there_are_not_are_named(monkeypatch):
    with pytest.raises(UnknownName, match="did you mean 'nsga2'"):
        OptunaSearch.of(SPACE, "nsga", 0, ["minimize"])
    monkeypatch.setattr("ksim.study.tuning.search.find_spec", lambda library: None)
    with pytest.raises(ConfigError, match="gp needs torch and scipy: pip install torch scipy"):
        OptunaSearch.of(SPACE, "gp", 0, ["minimize"])
