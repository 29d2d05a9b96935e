"""Whatever the pair router: it answers with engines that it was given, and splits what a decode engine cannot prefill.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve, fields
from hypothesis import given
from hypothesis import strategies as st

from ksim.cluster.cluster import RemoteReplica
from ksim.cluster.signals import signals_of, view_class
from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from tests.cluster.views import View
from tests.properties import examples

NAMES = catalog.names("cluster.pair_routers")
BLIND = [name for name in NAMES if not signals_of(plugin("cluster.pair_routers", Choice(name)))]

states = st.tuples(st.integers(0, 100), st.integers(0, 5000), st.integers(0, 100))
sides = st.tuples(st.lists(states, min_size=1, max_size=5),
                  st.lists(st.tuples(states, st.sampled_from(["decode", "both"])), min_size=1, max_size=5))
#: Engines come and go, and are busy or not, from one request to the next.
histories = st.lists(st.tuples(sides, st.integers(1, 9000)), min_size=1, max_size=10)


def views(sides: Any) -> tuple[list[View], list[View]]:
    prefill = [View(number, *state, role="prefill") for number, state in enumerate(sides[0])]
    decode = [View(len(prefill) + number, *state, role=role) for number, (state, role) in enumerate(sides[1])]
    return prefill, decode


def answers(router: Any, history: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [router.choose(Request(number, float(number), prompt, 10), prefill, decode, float(number))
            for number, ((prefill, decode), prompt) in enumerate(history)]


@pytest.mark.parametrize("name", NAMES)
def test_options_have_public_names(name):
    assert not any(option.name.startswith("_") for option in fields(catalog.find("cluster.pair_routers", name))
                   if option.init)


def seen(history: Any) -> list[Any]:
    return [(views(sides), prompt) for sides, prompt in history]


def router(name: str, **options: Any) -> Any:
    return plugin("cluster.pair_routers", Choice(name, options))


@pytest.mark.parametrize("name", NAMES)
@given(history=histories)
@examples(60)
def test_answers_are_engines_of_either_side(name, history):
    history = seen(history)
    for (prefill, decode), ((given_prefill, given_decode), _) in zip(answers(router(name), history), history,
                                                                     strict=True):
        assert prefill is None or any(prefill is view for view in given_prefill)
        assert any(decode is view for view in given_decode)


@pytest.mark.parametrize("name", NAMES)
@given(history=histories)
@examples(60)
def test_what_a_decode_engine_cannot_prefill_is_split(name, history):
    assert all(prefill is not None or decode.role == "both" for prefill, decode in answers(router(name), seen(history)))


@pytest.mark.parametrize("name", NAMES)
@given(history=histories)
@examples(60)
def test_equal_histories_have_equal_answers(name, history):
    assert answers(router(name), seen(history)) == answers(router(name), seen(history))


@pytest.mark.parametrize("name", BLIND)
@given(history=histories)
@examples(60)
def test_a_blind_pair_router_answers_without_looking(name, history):
    history = seen(history)
    hidden = view_class(()).of
    unseen = [(tuple([hidden(RemoteReplica(view.number, view.role)) for view in side] for side in pair), prompt)
              for pair, prompt in history]
    numbers = [[(prefill and prefill.number, decode.number) for prefill, decode in answers(router(name), each)]
               for each in (unseen, history)]
    assert numbers[0] == numbers[1]


@given(history=histories, threshold=st.integers(0, 9000))
@examples(60)
def test_llm_d_splits_from_its_threshold_of_uncached_tokens_on(history, threshold):
    history = seen(history)
    for (prefill, decode), (_, prompt) in zip(answers(router("llm_d", threshold=threshold), history), history,
                                              strict=True):
        lacking = prompt - min(decode.cached, prompt)
        assert (prefill is not None) == (decode.role == "decode" or 0 < threshold <= lacking)


@given(history=histories)
@examples(60)
def test_the_least_loaded_pair_has_no_less_loaded_one(history):
    history = seen(history)
    for (prefill, decode), ((given_prefill, given_decode), _) in zip(answers(router("least_loaded"), history), history,
                                                                     strict=True):
        assert decode.outstanding == min(view.outstanding for view in given_decode)
        assert prefill is None or prefill.outstanding == min(view.outstanding for view in given_prefill)


def test_each_side_takes_the_routers_that_are_named():
    prefill, decode = views(([(3, 0, 0), (1, 0, 0)], [((0, 0, 0), "decode"), ((0, 0, 0), "decode")]))
    chosen = answers(router("each_side", prefill="least_outstanding"), [((prefill, decode), 100)] * 3)
    assert [(p.number, d.number) for p, d in chosen] == [(1, 2), (1, 3), (1, 2)]
    assert router("each_side").signals == ()
    assert router("each_side", decode="least_outstanding").signals == ("books",)


def test_llm_d_weighs_prefixes_twice_as_much_as_queues():
    """A queue that is shortest makes up for half of the prompt's blocks, and not for more."""
    busy, idle = View(0, 0, cached=640, waiting=9, role="decode"), View(1, 0, cached=0, waiting=0, role="decode")
    request = Request(0, 0.0, prompt=1280, output=10)
    prefill = [View(2, 0, 0, role="prefill")]
    better = evolve(busy, cached=704)
    assert router("llm_d").choose(request, prefill, [better, idle], 0.0)[1] is better
    assert router("llm_d").choose(request, prefill, [evolve(busy, cached=576), idle], 0.0)[1] is idle
    drawn = {router("llm_d", seed=seed).choose(request, prefill, [busy, idle], 0.0)[1].number for seed in range(20)}
    assert drawn == {0, 1}
