"""The way of a request: when it sets out, to which engine, and what waits for it.  Every step takes 10 s."""

from itertools import accumulate

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from ksim.cluster.routers.by_load import LeastOutstanding, PrefixAware
from ksim.flow.events import Admitted, Arrived, Finished, Rejected, Routed
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError
from tests.engine.by_hand import play
from tests.properties import examples


def arrivals(log) -> dict[int, float]:
    return {event.request.id: event.time for event in log.of(Arrived)}


def ends(log) -> dict[int, float]:
    return {event.request_id: event.time for event in log.of(Finished)}


def routes(log) -> list[int]:
    return [event.engine for event in log.of(Routed)]


def test_requests_set_out_when_they_arrive():
    log = play([Request(0, 0.0, 5, 1), Request(1, 2.5, 5, 1), Request(2, 2.5, 5, 1)]).log
    assert arrivals(log) == {0: 0, 1: 2.5, 2: 2.5}
    assert ends(log) == {0: 10, 1: 20, 2: 20}


def test_a_request_goes_to_one_engine_and_stays_there():
    log = play([Request(number, 0.0, 5, 2) for number in range(4)], engines=2).log
    assert routes(log) == [0, 1, 0, 1]
    assert [(event.request_id, event.engine) for event in log.of(Finished)] == [(0, 0), (2, 0), (1, 1), (3, 1)]


def test_least_outstanding_sees_what_has_finished():
    """The long request keeps engine 0 busy; those that come while engine 1 is idle go there."""
    requests = [Request(0, 0.0, 5, 50), *(Request(number, 15.0 * number, 5, 1) for number in range(1, 4))]
    assert routes(play(requests, engines=2, router=LeastOutstanding()).log) == [0, 1, 1, 1]


def test_prefix_aware_sends_a_prompt_where_its_beginning_is_cached():
    """The second comes while the first runs, so it goes elsewhere; the others follow those that they begin like."""
    requests = [Request(number, arrival, 321, 1, tuple((content, chunk) for chunk in range(20)))
                for number, (content, arrival) in enumerate([("a", 0), ("b", 1), ("b", 100), ("a", 200)])]
    log = play(requests, engines=2, router=PrefixAware()).log
    assert routes(log) == [0, 1, 1, 0]
    assert [event.cached for event in log.of(Admitted)] == [0, 0, 320, 320]


@frozen
class Elsewhere:
    """Answers with something that is none of the engines."""

    answer: object

    def choose(self, request, engines, now):
        return self.answer


@pytest.mark.parametrize("answer", [None, 0, "engine0"])
def test_a_router_that_chooses_no_engine_is_named(answer):
    with pytest.raises(ConfigError, match=f"router Elsewhere: chose {answer!r}, which is no engine"):
        play([Request(0, 0.0, 5, 1)], router=Elsewhere(answer))


def test_an_engine_of_another_cluster_is_no_engine():
    foreign = play([Request(0, 0.0, 5, 1)]).engines[0]
    with pytest.raises(ConfigError, match="which is no engine") as error:
        play([Request(0, 0.0, 5, 1)], router=Elsewhere(foreign))
    assert len(str(error.value)) < 150


# Clients that wait.

requests = st.lists(st.tuples(st.floats(0, 15), st.integers(1, 300), st.integers(1, 6)), min_size=1, max_size=15).map(
    lambda drawn: [Request(number, arrival, prompt, output) for number, (arrival, (_, prompt, output)) in enumerate(
        zip(accumulate(gap for gap, _, _ in drawn), drawn, strict=True))])


@given(requests=requests, most=st.integers(1, 4), engines=st.integers(1, 2))
@examples(60)
def test_never_more_are_under_way_than_the_client_allows(requests, most, engines):
    log = play(requests, max_concurrency=most, engines=engines).log
    changes = [(event.time, 1) for event in log.of(Arrived)] + [(event.time, -1) for event in log.of(Finished)]
    under_way = list(accumulate(change for _, change in sorted(changes)))  # at equal times, one ends before one begins
    assert max(under_way) <= most
    assert under_way[-1] == 0


def test_a_request_sets_out_when_another_has_ended():
    """Two at a time: the third of four goes when the first two end at 10, together with the fourth."""
    log = play([Request(number, 0.0, 5, 1) for number in range(4)], max_concurrency=2).log
    assert arrivals(log) == {0: 0, 1: 0, 2: 10, 3: 10}


def test_a_client_that_waits_keeps_its_engine_busy():
    """One at a time, three requests of two steps each: one after another without a pause."""
    log = play([Request(number, 0.0, 5, 2) for number in range(3)], max_concurrency=1).log
    assert ends(log) == {0: 20, 1: 40, 2: 60}


def test_a_request_that_is_turned_away_makes_room_for_the_next():
    log = play([Request(0, 0.0, 5000, 1), Request(1, 0.0, 5, 1)], max_concurrency=1).log
    assert [event.request_id for event in log.of(Rejected)] == [0]
    assert arrivals(log) == {0: 0, 1: 0}


# Sessions.

def chat(number: int, arrival: float, prompt: int, delay: float = 0.0, session: str = "chat") -> Request:
    """A turn that names all of its tokens, output included."""
    return Request(number, arrival, prompt, 2, tuple((session, i) for i in range(60)), session=session, delay=delay)


def test_a_turn_starts_when_its_user_has_read_the_answer_to_the_one_before():
    """The first ends at 20; 7 s later the second begins, and the third right after its end at 47."""
    log = play([chat(0, 0.0, 33), chat(1, 0.0, 80, delay=7.0), chat(2, 0.0, 99)]).log
    assert arrivals(log) == {0: 0, 1: 27, 2: 47}


def test_a_turn_finds_what_was_said_before_in_the_cache():
    """The first has computed 34 of its 35 tokens, which fill two blocks; the second 81, which fill five."""
    log = play([chat(0, 0.0, 33), chat(1, 0.0, 80), chat(2, 0.0, 99)]).log
    assert [event.cached for event in log.of(Admitted)] == [0, 32, 80]


def test_a_turn_starts_no_earlier_than_it_arrives():
    assert arrivals(play([chat(0, 0.0, 33), chat(1, 500.0, 80)]).log) == {0: 0, 1: 500}


def test_sessions_do_not_wait_for_each_other():
    log = play([chat(0, 0.0, 33), chat(1, 0.0, 80), chat(2, 5.0, 33, session="other")]).log
    assert arrivals(log) == {0: 0, 1: 20, 2: 5}


def test_a_session_goes_on_after_a_turn_that_was_turned_away():
    log = play([chat(0, 0.0, 5000), chat(1, 0.0, 33, delay=3.0)]).log
    assert arrivals(log) == {0: 0, 1: 3}


def test_a_turn_that_waits_for_its_session_takes_no_place():
    """One at a time: while the user reads, the other request runs."""
    log = play([chat(0, 0.0, 33), chat(1, 0.0, 80, delay=30.0), Request(2, 0.0, 5, 1)], max_concurrency=1).log
    assert arrivals(log) == {0: 0, 2: 20, 1: 50}


def test_the_end_of_every_request_is_reported():
    """Of those that finish and of those that are turned away."""
    told = []
    play([Request(0, 0.0, 5, 2), Request(1, 0.0, 5, 1), Request(2, 1.0, 5000, 1)], on_end=lambda: told.append(1))
    assert len(told) == 3


class Watching:
    """Notes what it is told, and answers with the last engine."""

    def __init__(self):
        self.seen = []

    def choose(self, request, engines, now):
        self.seen.append((request.id, now, [engine.outstanding for engine in engines]))
        return engines[-1]


def test_a_router_is_told_the_time_and_sees_each_request_once():
    router = Watching()
    play([Request(0, 0.0, 5, 1), Request(1, 4.0, 5, 1)], engines=2, router=router)
    assert router.seen == [(0, 0, [0, 0]), (1, 4, [0, 1])]
