"""MooncakeStoreConnector: a pool of host memory that engines share."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.flow.events import Copied
from ksim.foundation.errors import ConfigError
from ksim.kv.offload.evictions import RequestAccess
from ksim.kv.offload.mooncake import MooncakePool
from ksim.scenario.scenario import Scenario
from ksim.simulation.fleet import Fleet
from tests.kv.offload.runs import BLOCK, extras, scenario, serves, workloads
from tests.kv.transfer.fleets import run
from tests.laws.happenings import facts
from tests.properties import examples

ACCESS = RequestAccess()


def with_pool(model: str, blocks: float = 100, workload: Any = None, extra: Any = (), replicas: int = 2,
              **more: Any) -> dict[str, Any]:
    """A scenario whose engines each give memory for so many blocks."""
    table = scenario(model, workload=workload, pools={"all": {"role": "both", "replicas": replicas}}, **more)
    table["serve"]["kv_transfer_config"] = {"kv_connector": "MooncakeStoreConnector", "kv_connector_extra_config": {
        "global_segment_size": blocks * BLOCK, **dict(extra)}}
    return table


def repeated(tmp_path: Any, *arrivals: float, prompt: int = 130) -> dict[str, Any]:
    """Requests with the same prompt."""
    names = "|".join(str(place) for place in range(-(-prompt // 16)))
    rows = [f"{arrival},{prompt},40,{names}" for arrival in arrivals]
    (tmp_path / "t.csv").write_text("\n".join(["arrival,prompt,output,hash_ids", *rows]))
    return {"replay": {"path": str(tmp_path / "t.csv")}}


def loads(log: Any) -> list[Copied]:
    return [copy for copy in log.of(Copied) if copy.target == "gpu"]


@given(data=st.data())
@examples(12)
def test_going_ahead_never_changes_anything(model, data):
    workload = data.draw(workloads)
    workload["synthetic"] |= data.draw(extras)
    extra = {"save_decode_cache": data.draw(st.booleans())}
    table = with_pool(model, data.draw(st.sampled_from([3, 20, 200])), workload, extra,
                      data.draw(st.integers(1, 3)), **data.draw(serves))
    skipped, stepped = run(table).log, run(table, skips=False).log
    assert sorted(map(repr, facts(skipped))) == sorted(map(repr, facts(stepped)))


def test_a_second_engine_loads_what_the_first_has_computed(model, tmp_path):
    result = run(with_pool(model, workload=repeated(tmp_path, 0, 1)))
    (load,) = loads(result.log)
    stores = [copy for copy in result.log.of(Copied) if copy.target == "cpu"]
    assert {copy.engine for copy in stores} == {0} and (load.engine, load.request_id, load.tokens) == (1, 1, 128)
    assert load.bytes == sum(copy.bytes for copy in stores) == 8 * BLOCK


def test_outputs_are_stored_where_asked(model, tmp_path):
    log = run(with_pool(model, workload=repeated(tmp_path, 0), extra={"save_decode_cache": True})).log
    assert sum(copy.tokens for copy in log.of(Copied)) == 160


@pytest.mark.parametrize(("options", "says"), [
    ({"load_async": False}, "load_async"), ({"lookup_async": True}, "lookup_async"), ({"segments": 3}, "segments"),
    ({"global_segment_size": 0}, "global_segment_size")])
def test_options_that_cannot_be_are_refused_by_name(model, options, says):
    with pytest.raises(ConfigError) as error:
        Fleet.of(Scenario.of(with_pool(model, extra=options)))
    assert says in str(error.value) and "kv_connector_extra_config" in str(error.value)


def test_a_pool_larger_than_the_nodes_memory_is_refused(model):
    with pytest.raises(ConfigError, match="2 engines of a node would take"):
        Fleet.of(Scenario.of(with_pool(model, extra={"global_segment_size": "1500 GiB"})))


def pool(*rooms, **more):
    made = MooncakePool(**more)
    for place, blocks in enumerate(rooms):
        made.add_segment(f"host{place}", blocks)
    return made


def filled(made, keys):
    taken = made.offer(keys, ACCESS, 0)
    made.arrived(taken)
    return taken


def test_a_router_that_looks_keeps_nothing_longer():
    made = pool(10)
    filled(made, [1, 2, 3])
    made.leading([1, 2])
    assert [*made._loads] == [3, 2, 1]


class TestPool:
    def test_blocks_are_spread_over_all_segments(self):
        made = pool(1000, 1000)
        filled(made, range(500))
        assert min(made.hosts(range(500)).values()) > 200
        assert made.hosts(range(500)) == pool_of_same(made)

    def test_a_block_is_found_once_it_has_arrived(self):
        made = pool(10)
        assert made.offer([1, 2], ACCESS, 0) == [1, 2] and made.offer([1, 2, 3], ACCESS, 0) == [3]
        assert made.leading([1, 2]) == (0, True)
        made.arrived([1, 2])
        assert made.leading([1, 2, 3]) == (2, True)

    def test_the_share_that_leaves_was_not_used_for_longest(self):
        made = pool(20)
        filled(made, range(19))
        made.renew([0, 1])
        filled(made, [19])  # beyond 95 %: a tenth leaves, tails first
        assert len(made) == 18 and [key for key in range(20) if key not in made] == [17, 18]

    def test_blocks_that_are_loaded_stay(self):
        made = pool(2)
        filled(made, [1])
        made.pin([1], ACCESS, 0)
        assert filled(made, [2, 3]) == [2] and 1 in made
        assert filled(made, [3, 4]) == [3] and 1 in made and 2 not in made

    @given(st.lists(st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True), st.booleans()),
                    max_size=30), st.lists(st.integers(1, 9), min_size=1, max_size=3))
    @examples(60)
    def test_no_segment_has_more_than_fits(self, offers, rooms):
        made = pool(*rooms)
        for keys, arrives in offers:
            taken = made.offer(keys, ACCESS, 0)
            if arrives:
                made.arrived(taken)
            held = made.hosts(made._segments)
            assert all(held[f"host{place}"] <= room for place, room in enumerate(rooms))
            assert sum(held.values()) == len(made) <= made.capacity and {*made._loads} <= {*made._segments}


def pool_of_same(made: MooncakePool) -> Counter[str]:
    """Where another pool with the same seed puts the same blocks."""
    other = pool(1000, 1000)
    filled(other, range(500))
    return other.hosts(range(500))


def test_a_pool_without_room_for_a_chunk_is_refused(model):
    with pytest.raises(ConfigError, match="host memory for KV would hold nothing: a chunk of KV takes"):
        run(with_pool(model, blocks=0.5))
