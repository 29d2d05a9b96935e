"""Which points a study tries: lists, ranges, every combination, and samples."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.errors import ConfigError
from ksim.study.grid import Range, Sample, SettingValues, axes_of, combinations, parse, points
from ksim.study.plan import replication_seed

SHARES = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(("text", "axis"), [
    ("serve.max_num_seqs=16,64", SettingValues("serve.max_num_seqs", (16, 64))),
    ("serve.max_num_seqs=16:256", Range("serve.max_num_seqs", 16, 256, whole=True)),
    ("x = 1 : 1e3 : log", Range("x", 1, 1000, log=True)), ("x=.5:2.:linear", Range("x", 0.5, 2)),
    ("power.cap=400 W:700 W", Range("power.cap", 400, 700, whole=True, unit="W")),
    ("power.cap=400:700 W", Range("power.cap", 400, 700, whole=True, unit="W")),
    ("oracle=mine:Waits", SettingValues("oracle", ("mine:Waits",))), ("x=1:2,3:4", SettingValues("x", ("1:2", "3:4"))),
])
def test_values_are_listed_or_between_two_ends(text, axis):
    assert parse(text) == axis
    assert parse(f"{axis.key}={axis}") == axis if isinstance(axis, Range) else True


@pytest.mark.parametrize(("text", "message"), [
    ("x=5:5", "a range goes from low to high, and 5 is not above 5"), ("x=5:1", "1 is not above 5"),
    ("x=0:5:log", "begins above 0, not at 0"), ("x=1 s:5 ms", "the same unit"), ("x=1 s:5", "the same unit"),
    ("=1:2", "expected key=value,value"),
])
def test_ranges_that_are_none_are_refused(text, message):
    with pytest.raises(ConfigError, match=f"--space: .*{message}"):
        parse(text, "--space")


@given(SHARES, st.integers(-50, 50), st.integers(1, 100))
def test_every_value_of_a_range_is_between_its_ends_and_each_whole_number_is_there(share, low, width):
    whole, real = Range("x", low, low + width, whole=True), Range("x", low, low + width)
    assert low <= whole.at(share) <= low + width and isinstance(whole.at(share), int)
    assert low <= real.at(share) <= low + width
    assert {whole.at((part + 0.5) / (width + 1)) for part in range(width + 1)} == {*range(low, low + width + 1)}
    positive = Range("x", low + 51, low + 51 + width, log=True, whole=True)
    assert positive.low <= positive.at(share) <= positive.high


@given(st.integers(1, 40), st.integers(0, 3))
def test_a_latin_hypercube_has_one_point_in_each_part_of_each_axis(count, seed):
    axes = [Range("a", 0, 1), Range("b", 1, math.e**8, log=True), SettingValues("c", ("x", "y"))]
    found = points(axes, Sample("latin", count), seed)
    assert found == points(axes, Sample("latin", count), seed)
    assert sorted(int(point["a"] * count + 1e-6) for point in found) == pytest.approx([*range(count)], abs=1)
    assert sorted(int(math.log(point["b"]) / 8 * count + 1e-4) for point in found) == pytest.approx(
        [*range(count)], abs=1)
    assert abs(2 * sum(point["c"] == "x" for point in found) - count) <= 1


def test_samples_follow_the_seed_and_have_each_point_once():
    axes = [Range("a", 1, 3, whole=True), SettingValues("b", (1, 2))]
    for kind in ("latin", "random"):
        drawn = [points(axes, Sample(kind, 50), seed) for seed in (0, 0, 1)]
        assert drawn[0] == drawn[1] != drawn[2]
        assert len(drawn[0]) == len({tuple(point.values()) for point in drawn[0]}) == 6
    lists = [SettingValues("a", tuple(range(10))), SettingValues("b", tuple(range(10)))]
    assert points(lists, Sample("random", 20), 3) == combinations(lists, 20, 3)
    assert points(lists) == combinations(lists) and len(points(lists)) == 100


def test_a_range_needs_a_sample():
    with pytest.raises(ConfigError, match="--over: a: a range needs --sample, such as latin:200"):
        points([SettingValues("b", (1,)), Range("a", 1, 2)])
    with pytest.raises(ConfigError, match="a comes twice"):
        points([SettingValues("a", (1,)), Range("a", 1, 2)], Sample("latin", 3))


@pytest.mark.parametrize("text", ["latin", "latin:", "latin:0", "sobol:5", "5", "latin:-5", "random:2.5"])
def test_samples_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match="--sample: expected latin:COUNT or random:COUNT"):
        Sample.parse(text)
    assert str(Sample.parse("latin:200")) == "latin:200"


@given(st.integers(0, 2**40))
def test_replications_have_seeds_of_their_own_and_the_first_that_of_the_scenario(seed):
    seeds = [replication_seed(seed, replication) for replication in range(20)]
    assert seeds[0] == seed and len({*seeds}) == 20 and all(0 <= each < 2**63 for each in seeds)
    assert seeds == [replication_seed(seed, replication) for replication in range(20)]


def test_axes_of_a_python_call_are_lists_and_texts():
    assert axes_of({"gpu": ["h100", "h200"], "x": "1:9:log", "y": (1.5,)}) == [
        SettingValues("gpu", ("h100", "h200")), Range("x", 1, 9, log=True, whole=True), SettingValues("y", (1.5,))]
    assert axes_of(["gpu=h100,h200"]) == axes_of("gpu=h100,h200") == [SettingValues("gpu", ("h100", "h200"))]
