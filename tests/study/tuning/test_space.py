"""The space that a tuning searches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.errors import ConfigError
from ksim.study.tuning.space import Listed, Space
from tests.properties import examples

SPACE = Space.parse(["a=1,2,4", "b=x,y", "c=3:40", "d=1024:16384:log", "e=0.5:2", "f=400 W:700 W",
                     "g='200 ms','1 s'", "h=true,false"])


@pytest.mark.parametrize(("text", "ordered"), [
    ("k=1,2,4", True), ("k=4,2,1", True), ("k=1,4,2", False), ("k=400 W,700 W", True), ("k=h100,h200", False),
    ("k=true,false", False), ("k=0.5", True),
])
def test_numbers_and_quantities_in_order_have_an_order(text, ordered):
    (listed,) = Space.parse([text]).dimensions
    assert isinstance(listed, Listed) and listed.ordered is ordered


@examples(200)
@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=8, max_size=8))
def test_a_proposal_is_what_was_proposed_for_its_settings(shares):
    proposal = SPACE.at(shares)
    settings = SPACE.settings(proposal)
    assert {axis.key: axis.proposed(settings[axis.key]) for axis in SPACE.dimensions} == proposal
    for axis in SPACE.dimensions:
        distribution = axis.distribution()
        assert distribution._contains(distribution.to_internal_repr(proposal[axis.key]))
        assert not isinstance(axis, Listed) or settings[axis.key] in axis.values


@examples(200)
@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=8, max_size=8))
def test_neighbours_differ_in_one_dimension_and_lie_in_the_space(shares):
    proposal = SPACE.at(shares)
    neighbours = SPACE.neighbours(proposal)
    assert neighbours
    for other in neighbours:
        (key,) = (key for key in proposal if other[key] != proposal[key])
        distribution = next(axis for axis in SPACE.dimensions if axis.key == key).distribution()
        assert distribution._contains(distribution.to_internal_repr(other[key]))


def test_a_space_without_real_numbers_lists_its_points():
    space = Space.parse(["a=1,2,4", "b=x,y", "c=3:5"])
    points = [tuple(space.settings(proposal).values()) for proposal in space.proposals()]
    assert space.size == len(points) == len(set(points)) == 18
    assert points[:4] == [(1, "x", 3), (1, "x", 4), (1, "x", 5), (1, "y", 3)]
    assert SPACE.size is None


@pytest.mark.parametrize(("texts", "words"), [
    ([], "names no key"), (["a=1", "a=2"], "a comes twice"), (["a="], "a"), (["a"], "expected"), (["a=1,1"], "twice"),
    (["a=4:2"], "2 is not above 4"), (["a=0:8:log"], "above 0"), (["a=2:2"], "not above"),
])
def test_spaces_that_are_none_are_refused(texts, words):
    with pytest.raises(ConfigError, match=words):
        Space.parse(texts)
