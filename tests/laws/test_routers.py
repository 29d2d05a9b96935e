"""Whatever the router: it answers with one of the engines that it was given, and equal runs with equal answers."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.cluster.cluster import RemoteReplica
from ksim.cluster.routers import V
from ksim.cluster.signals import signals_of, view_class
from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from tests.cluster.views import View, router_of
from tests.properties import examples

NAMES = catalog.names("cluster.routers")
BLIND = [name for name in NAMES if not signals_of(plugin("cluster.routers", Choice(name)))]


engines = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5000)), min_size=1, max_size=8).map(
    lambda states: [View(number, *state) for number, state in enumerate(states)])
#: Engines come and go, and are busy or not, from one request to the next.
histories = st.lists(st.tuples(engines, st.integers(1, 9000)), min_size=1, max_size=12)


def answers(name: str, history: Sequence[tuple[list[V], int]]) -> list[V]:
    router = router_of(name)
    return [router.choose(Request(number, float(number), prompt, 10), views, float(number))
            for number, (views, prompt) in enumerate(history)]


@pytest.mark.parametrize("name", NAMES)
@given(history=histories)
@examples(60)
def test_an_answer_is_one_of_those_given(name, history):
    for answer, (views, _) in zip(answers(name, history), history, strict=True):
        assert any(answer is view for view in views)


@pytest.mark.parametrize("name", NAMES)
@given(history=histories)
@examples(60)
def test_equal_histories_have_equal_answers(name, history):
    assert answers(name, history) == answers(name, history)


@pytest.mark.parametrize("name", BLIND)
@given(history=histories)
@examples(60)
def test_a_blind_router_answers_without_looking(name, history):
    unseen = [([view_class(()).of(RemoteReplica(view.number)) for view in views], prompt) for views, prompt in history]
    assert [view.number for view in answers(name, unseen)] == [view.number for view in answers(name, history)]
