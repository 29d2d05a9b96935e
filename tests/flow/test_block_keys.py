"""Keys of blocks."""

from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.request import BlockKeys, Request, leading
from tests.properties import examples

NAMES = st.lists(st.integers(0, 2), max_size=6)


def request(names, number=0, **more):
    return Request(number, 0.0, prompt=max(1, 4 * len(names)), output=1, chunks=tuple(names), chunk_tokens=4, **more)


@given(NAMES, NAMES)
@examples(100)
def test_keys_are_equal_as_far_as_prefixes_are(one, other):
    keys = BlockKeys(4)
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    mine, theirs = keys.of(request(one)), keys.of(request(other))
    assert len(mine) == len(one) and len(set(mine)) == len(mine)
    assert leading(mine, set(theirs)) == shared
    assert not set(mine[shared:]) & set(theirs[shared:])


def test_blocks_without_names_are_a_requests_own():
    keys = BlockKeys(4)
    first, again, other = (keys.of(request([7], number), blocks=3) for number in (0, 0, 1))
    assert first == again and first[:1] == other[:1] and not set(first[1:]) & set(other)


def test_blocks_of_other_sizes_and_adapters():
    assert len(BlockKeys(8).of(request([1, 2, 3, 4]))) == 2
    keys = BlockKeys(4)
    assert not set(keys.of(request([1, 2]))) & set(keys.of(request([1, 2], adapter="german")))
