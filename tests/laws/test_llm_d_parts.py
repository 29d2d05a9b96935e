"""Whatever the part of llm-d's endpoint picker: scores are from 0 to 1, filters keep some, pickers take one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.cluster.llm_d.cycle import APPROXIMATE, IN_FLIGHT, PRECISE, Chance, Cycle, InFlightLoad, Match
from ksim.flow.request import Request
from ksim.foundation import catalog
from tests.cluster.views import View
from tests.properties import examples

NEEDED = {"active_request_filter": {"max_requests": 3}}


FOLDER = "cluster.llm_d.parts"


def parts(method: str) -> Any:
    return pytest.mark.parametrize(
        "name", [name for name in catalog.names(FOLDER) if hasattr(catalog.find(FOLDER, name), method)])


def made(part: str, **given: Any) -> Any:
    return catalog.find(FOLDER, part)(**NEEDED.get(part, {}), **given)


states = st.tuples(st.integers(0, 200), st.integers(0, 200), st.floats(0, 1), st.sampled_from(["prefill", "both"]),
                   st.integers(0, 8), st.integers(0, 10**6), st.integers(0, 10**6))
pools = st.lists(states, min_size=1, max_size=6)


def seen(states: list[Any]) -> tuple[Cycle, list[View]]:
    cycle = Cycle(Request(0, 0.0, 512, 10, session="s", adapter="x"), 1.0, Chance(0))
    match = Match(8, 64, {number: state[4] for number, state in enumerate(states) if state[4]},
                  {number: float(state[4]) for number, state in enumerate(states)})
    cycle.matches.update({APPROXIMATE: match, PRECISE: match})
    cycle.loads[IN_FLIGHT] = InFlightLoad(*({number: state[place] for number, state in enumerate(states)}
                                    for place in (4, 5, 6)))
    return cycle, [View(number, 0, 64 * state[4], waiting=state[0], running=state[1], kv_usage=state[2], role=state[3])
                   for number, state in enumerate(states)]


@parts("score")
@given(pool=pools)
@examples(30)
def test_scores_are_from_0_to_1(name, pool):
    cycle, engines = seen(pool)
    scores = made(name).score(cycle, engines)
    assert len(scores) == len(engines) and all(0 <= score <= 1 for score in scores)


@parts("keep")
@given(pool=pools)
@examples(30)
def test_filters_keep_engines_in_their_order(name, pool):
    cycle, engines = seen(pool)
    kept = made(name).keep(cycle, engines)
    assert [engine for engine in engines if any(engine is other for other in kept)] == [*kept]


@parts("pick")
@given(pool=pools, scores=st.lists(st.floats(0, 9), min_size=6, max_size=6))
@examples(30)
def test_pickers_take_an_engine_that_is_there(name, pool, scores):
    cycle, engines = seen(pool)
    picked = made(name).pick(cycle, engines, scores[:len(engines)])
    assert any(picked is engine for engine in engines)


@parts("look")
@given(pool=pools)
@examples(20)
def test_producers_write_under_their_names(name, pool):
    cycle, engines = seen(pool)
    made(name, name="mine").look(cycle, engines)
    assert "mine" in {*cycle.matches, *cycle.loads}


@parts("splits")
@given(pool=pools)
@examples(20)
def test_deciders_say_yes_or_no(name, pool):
    cycle, engines = seen(pool)
    assert made(name).splits(cycle, engines[0]) in (True, False)
