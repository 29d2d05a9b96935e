"""Collectives that are written down."""

import pytest

from ksim.compute.graph import Collective
from ksim.compute.notation.communicate import communicate
from tests.compute.notation.layers import launched


def test_tokens_go_to_their_experts():
    """A quarter of the 16 x 512 pairs is on each of four ranks, 8,192 numbers each."""
    dispatch = communicate("all_to_all", "ETm", "expert", {"E": "expert"}, "dispatch")
    assert launched(dispatch, expert=4) == [("dispatch", Collective("all_to_all", 33_554_432, "expert"))]
    assert launched(dispatch) == []


def test_numbers_may_have_another_format():
    assert launched(communicate("all_gather", "bsm", format="fp8"), tensor=2) == [
        ("all_gather", Collective("all_gather", 33_554_432, "tensor"))]


def test_what_is_refused():
    with pytest.raises(ValueError, match="kind"):
        communicate("broadcast", "bsm")
    with pytest.raises(ValueError, match="'data' is no group of ranks"):
        communicate("all_gather", "bsm", "data")
    with pytest.raises(ValueError, match="parallel index 'K' is not one of b, s, m"):
        communicate("all_gather", "bsm", parallel="K")
