"""The front: its laws, and what is said of points that are not on it."""

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ksim.foundation.errors import ConfigError, UnknownName
from ksim.study.experiment import Outcome
from ksim.study.pareto import Goals, Objective, Requirement, front, refusal

#: Few different values, so that ties are common.
COSTS = arrays.arrays(float, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=st.integers(0, 4).map(float))
BOTH = Goals((Objective("energy_joules"), Objective("output_throughput", maximise=True)))


def dominates(one, other):
    """By the definition, number by number."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and any(a < b for a, b in zip(one, other, strict=True))


@given(COSTS)
def test_the_front_is_what_nothing_dominates(costs):
    assert front(costs).tolist() == [not any(dominates(other, row) for other in costs) for row in costs]


@given(COSTS)
def test_a_dominated_point_is_dominated_by_the_front(costs):
    best = front(costs)
    assert best.any()
    assert all(any(dominates(leader, row) for leader in costs[best]) for row in costs[~best])


@given(COSTS, st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(costs, random):
    order = random.sample(range(len(costs)), len(costs))
    assert front(costs[order]).tolist() == front(costs)[order].tolist()


def outcomes(*rows):
    return [Outcome({"seed": seed}, {"energy_joules": joules, "output_throughput": rate})
            for seed, (joules, rate) in enumerate(rows)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_points_are_numbered_and_name_the_first_of_the_front_that_beats_them(rows):
    points = BOTH.rank(outcomes(*rows))
    costs = np.array([(joules, -rate) for joules, rate in (point.values for point in points)])
    assert [point.on_front for point in points] == front(costs).tolist()
    assert [point.number for point in points] == [*range(1, len(rows) + 1)]
    assert sorted(point.outcome.settings["seed"] for point in points) == [*range(len(rows))]
    for point, row in zip(points, costs, strict=True):
        beating = [other.number for other, cost in zip(points, costs, strict=True)
                   if other.on_front and dominates(cost, row)]
        assert point.beaten_by == min(beating, default=None)


def test_the_front_comes_first_and_points_that_do_not_count_last():
    found = [Outcome({"seed": 9}, problem="does not fit"), *outcomes((3.0, 9.0), (2.0, 7.0), (4.0, 8.0), (5.0, None))]
    points = BOTH.rank(found)
    assert [(point.outcome.settings["seed"], point.beaten_by, point.problem) for point in points] == [
        (1, None, ""), (0, None, ""), (2, 2, ""), (9, None, "does not fit"),
        (3, None, "nothing in the run tells output_throughput")]
    assert [point.on_front for point in points] == [True, True, False, False, False]


def excellent(**more):
    """Better than all others, but for something."""
    return {"energy_joules": 0.1, "output_throughput": 99.0, "completed": 98, "failed": 2, "unfinished": 0, **more}


@pytest.mark.parametrize(("tolerated", "counts"), [(0.0, False), (0.01, False), (0.02, True), (1.0, True)])
def test_a_point_that_rejects_more_requests_than_tolerated_does_not_count_however_good(tolerated, counts):
    left = Outcome({"seed": 9}, excellent(), unserved="2 rejected of 100 requests: too long")
    points = evolve(BOTH, tolerated=tolerated).rank([left, *outcomes((3.0, 9.0))])
    rejecting = next(point for point in points if point.outcome is left)
    assert rejecting.on_front is counts and rejecting.values == (0.1, 99.0)
    assert (rejecting.problem == "") is counts
    assert ("--max-rejected 0.02 would" in refusal(evolve(BOTH, tolerated=tolerated).rank([left]))) is not counts
    assert sum(point.on_front for point in points) == 1


def test_a_saturated_point_is_on_no_front_and_beats_nothing():
    saturated = Outcome({"seed": 9}, excellent(saturated=True))
    points = BOTH.rank([saturated, *outcomes((3.0, 9.0), (4.0, 8.0))])
    assert [(point.on_front, point.beaten_by) for point in points] == [(True, None), (False, 1), (False, None)]
    assert points[2].problem.startswith("saturated") and points[2].values == (0.1, 99.0)
    assert refusal(BOTH.rank([saturated])).endswith("; lower the rate of requests, or try more GPUs")


def test_a_point_that_misses_a_requirement_does_not_count():
    found = outcomes((3.0, 9.0), (2.0, 7.0), (1.0, 5.0))
    required = (Requirement.parse("output_throughput>=7"), Requirement.parse("energy_joules<3"))
    points = evolve(BOTH, required=required).rank(found)
    assert [(point.values, point.problem) for point in points] == [
        ((2.0, 7.0), ""), ((3.0, 9.0), "energy_joules is 3.00, not < 3"),
        ((1.0, 5.0), "output_throughput is 5.00, not >= 7")]


@pytest.mark.parametrize(("text", "value", "holds"), [
    ("p99_ttft_ms<1000", 999.0, True), ("p99_ttft_ms < 1000", 1000.0, False), ("p99_ttft_ms<=1e3", 1000.0, True),
    ("p99_ttft_ms>1000", 1000.0, False), ("p99_ttft_ms>=1000", 1000.0, True), ("p99_ttft_ms<1000", None, False),
    ("dollars_per_million_output_tokens<0.5", 0.4, True), ("slo_attainment>=0.99", 0.98, False),
])
def test_a_requirement_bounds_a_number_of_the_summary(text, value, holds):
    requirement = Requirement.parse(text)
    assert (requirement.missed({requirement.key: value}) == "") is holds


@pytest.mark.parametrize("text", ["p99_ttft_ms", "p99_ttft_ms=10", "p99_ttft_ms<", "<10", "p99_ttft_ms<fast",
                                  "p99_ttft_ms<nan", "p99_ttft_ms<inf", "p99_ttft_ms<<5", "p99_ttft_ms==5", ""])
def test_malformed_requirements_are_refused(text):
    with pytest.raises(ConfigError, match="--require: expected KEY<NUMBER"):
        Requirement.parse(text)


def test_a_refusal_names_the_first_reason():
    found = [Outcome({}, problem="too large"), Outcome({}, problem="odd"), Outcome({}, problem="odd")]
    assert refusal(BOTH.rank(found)) == "none of 3 points counts: too large (and 1 other reason)"
    assert refusal(BOTH.rank(outcomes((3.0, 9.0)))) == ""


@pytest.mark.parametrize(("text", "maximise"), [
    ("output_throughput", True), ("min:output_throughput", False), ("max:output_throughput", True),
    ("-output_throughput", True), ("p99_ttft_ms", False), ("max:p99_ttft_ms", True), ("min:steps", False),
])
def test_an_objective_is_to_become_better_unless_it_says_otherwise(text, maximise):
    found = Objective.parse(text)
    assert found.maximise == maximise and Objective.parse(str(found)) == found


def test_an_objective_of_which_neither_more_nor_less_is_better_says_which():
    with pytest.raises(ConfigError, match="say min:kv_cache_usage_mean or max:kv_cache_usage_mean"):
        Objective.parse("kv_cache_usage_mean")


@pytest.mark.parametrize("text", ["output_throuhgput", "saturated", "model_id", "max:-output_throughput", ""])
def test_an_objective_is_a_number_of_the_summary(text):
    with pytest.raises(UnknownName, match="no objective named"):
        Objective.parse(text)


def test_a_misspelt_objective_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'median_tpot_ms'"):
        Objective.parse("median_topt_ms")


@pytest.mark.parametrize("texts", [["duration", "max:duration"], ["duration", "completed", "duration"]])
def test_an_objective_is_named_once(texts):
    with pytest.raises(ConfigError, match="duration comes twice"):
        Goals.parse(texts)


def test_the_front_of_one_objective_is_its_best():
    points = Goals.parse(["energy_joules"]).rank(outcomes((3.0, 9.0), (2.0, 7.0), (2.0, 1.0)))
    assert [(point.values, point.beaten_by) for point in points] == [((2.0,), None), ((2.0,), None), ((3.0,), 1)]


def test_default_objectives_are_energy_and_end_to_end_latency():
    assert [objective.key for objective in Goals.parse().objectives] == ["joules_per_output_token", "median_e2el_ms"]
