"""Routers that draw, remember or hash: decisions worked out by hand."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.cluster.routers.by_load import PowerOfTwo
from ksim.cluster.routers.consistent_hash import ConsistentHash, HashRing, point
from ksim.cluster.routers.session_affinity import SessionAffinity
from ksim.flow.request import Request
from ksim.foundation.config import Choice
from tests.cluster.views import View
from tests.properties import examples


def views(*outstanding: int) -> list[View]:
    return [View(number, requests, 0) for number, requests in enumerate(outstanding)]


def request(number: int = 0, session: str = "", **more) -> Request:
    return Request(number, 0.0, prompt=1000, output=10, session=session, **more)


# sgl-model-gateway, policies/power_of_two.rs: two different workers, the first of equals.


def test_power_of_two_never_takes_the_busiest_of_all():
    router = PowerOfTwo()
    chosen = [router.choose(request(), views(9, 1, 5), 0.0).number for _ in range(200)]
    assert 0 not in chosen
    assert chosen.count(1) == pytest.approx(200 * 2 / 3, abs=30)  # drawn with either of the others


def test_power_of_two_draws_by_its_seed():
    def drawn(seed: int) -> list[int]:
        router = PowerOfTwo(seed)
        return [router.choose(request(), views(*[0] * 8), 0.0).number for _ in range(30)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_power_of_two_has_no_choice_of_one_engine():
    assert PowerOfTwo().choose(request(), views(7), 0.0).number == 0


# Sessions.


def test_a_session_stays_where_its_first_turn_went():
    router = SessionAffinity()
    assert router.choose(request(session="a"), views(3, 1), 0.0).number == 1
    assert router.choose(request(session="a"), views(0, 99), 9e9).number == 1
    assert router.choose(request(session="b"), views(0, 99), 0.0).number == 0
    assert router.choose(request(), views(5, 2), 0.0).number == 1


def test_a_session_whose_engine_is_gone_gets_another():
    router = SessionAffinity()
    assert router.choose(request(session="a"), views(3, 1), 0.0).number == 1
    assert router.choose(request(session="a"), views(3), 0.0).number == 0
    assert router.choose(request(session="a"), views(3, 1), 0.0).number == 0


def test_it_goes_by_what_its_fallback_goes_by():
    assert SessionAffinity(Choice("round_robin")).signals == ()
    assert SessionAffinity(Choice("mooncake")).refusal == ""
    assert SessionAffinity().refusal is None


# A ring of hashes.


def test_a_key_belongs_to_the_next_engine_clockwise():
    ring = HashRing([0, 1, 2], 1)
    places = sorted((point(f"engine {number} node 0"), number) for number in range(3))
    after = [number for place, number in places if place >= point("key")]
    before = [number for place, number in places if place < point("key")]
    assert [*ring.clockwise("key")] == after + before


def test_an_engine_more_moves_keys_to_it_alone():
    """Karger et al. 1997: about one key of five moves, and all of those go to the fifth engine."""
    four, five = HashRing(range(4), 150), HashRing(range(5), 150)
    owners = [(next(four.clockwise(str(key))), next(five.clockwise(str(key)))) for key in range(2000)]
    moved = [new for old, new in owners if new != old]
    assert set(moved) == {4}
    assert len(moved) == pytest.approx(400, rel=0.25)


def test_equal_prefixes_meet_and_sessions_come_first():
    router, prefix = ConsistentHash(), ConsistentHash("prefix")
    one, other = (request(number, chunks=("system", "prompt", number)) for number in (1, 2))
    assert router.key_of(one) != router.key_of(other)  # 256 tokens of 16 each: all three names count
    assert ConsistentHash("prefix", prefix_token_count=32).key_of(one) == ConsistentHash(
        "prefix", prefix_token_count=32).key_of(other)
    assert router.key_of(request(session="s", chunks=("a",))) == router.key_of(request(session="s"))
    assert prefix.key_of(request(session="s", chunks=("a",))) == prefix.key_of(request(7, chunks=("a",)))
    assert router.key_of(request(1)) != router.key_of(request(2))


@given(keys=st.lists(st.integers(0, 3), max_size=40), factor=st.integers(100, 200), engines=st.integers(1, 6))
@examples(60)
def test_no_engine_has_more_than_its_bound(keys, factor, engines):
    """Mirrokni, Thorup, Zadimoghaddam 2018: at most ceil(c m / n) of m requests."""
    router, loads = ConsistentHash(hash_balance_factor=factor, virtual_nodes=10), [0] * engines
    for place, key in enumerate(keys):
        chosen = router.choose(request(place, session=str(key)), views(*loads), 0.0).number
        loads[chosen] += 1
        assert loads[chosen] <= ceil(factor * (place + 1) / (100 * engines))


def test_without_bounds_it_looks_at_nobody():
    assert ConsistentHash().signals == ()
    assert ConsistentHash(hash_balance_factor=125).signals == ("books",)
