"""How splits are written, and what is left on a rank."""

import pytest

from ksim.compute.notation.communicate import Groups, LayerSizes, splits


def test_an_index_alone_is_split_by_the_tensor_group():
    assert splits("K") == splits({"K": "tensor"}) == (("K", "tensor"),)
    assert splits("") == ()


@pytest.mark.parametrize("written, problem", [
    ("Ks", "'Ks' is not one index; of several, say which group splits each: {'K': 'tensor', 's': 'context'}"),
    ({"K": "sequence"}, "'sequence' is no group of ranks (tensor, context, expert)"),
])
def test_what_is_no_split(written, problem):
    with pytest.raises(ValueError) as error:
        splits(written)
    assert str(error.value) == problem


def test_two_groups_split_one_index_one_after_the_other():
    pairs = (("K", "tensor"), ("s", "context"), ("K", "context"))
    local = LayerSizes({"K": 8, "s": 6, "m": 5}).on(pairs, Groups(tensor=4, context=2))
    assert local.of == {"K": 1, "s": 3, "m": 5}
