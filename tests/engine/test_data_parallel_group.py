"""Engines that share experts: their steps begin together and end with the slowest."""

import pytest
import simpy

from ksim.engine.ranks import DataParallelGroup
from ksim.flow.events import Finished, Stepped
from ksim.flow.log import Log
from ksim.flow.request import Request
from tests.engine.by_hand import SLOW, engine


def serve(requests: dict[int, list[Request]], seconds=lambda batch: 10.0, **settings) -> Log:
    """Play the requests of each engine, by its number, to the end."""
    env, log = simpy.Environment(), Log()
    group = DataParallelGroup(env, len(requests))
    engines = {number: engine(env, log, number, steps=(seconds,), group=group, **settings) for number in requests}

    def arrive(number, request):
        yield env.timeout(request.arrival)
        engines[number].submit(request, lambda: None)

    for number, asked in requests.items():
        for request in asked:
            env.process(arrive(number, request))
    env.run()
    assert len(list(log.of(Finished))) == sum(map(len, requests.values()))
    return log


def spans(log: Log, number: int, dummies: bool = False) -> list[tuple[float, float]]:
    """When the steps of an engine began and ended: those with a batch, or its `dummies`."""
    return [(step.start, step.end) for step in log.of(Stepped)
            if step.engine == number and (step.batch.tokens == 0) is dummies]


def by_tokens(batch) -> float:
    return float(batch.tokens)


def test_the_faster_waits_for_the_slower():
    """Prompts of 5 and 50 tokens, a second each: both end at 50, and the decodes after them at 51."""
    log = serve({0: [Request(0, 0.0, 5, 2)], 1: [Request(1, 0.0, 50, 2)]}, by_tokens)
    assert spans(log, 0) == spans(log, 1) == [(0, 50), (50, 51)]


def test_waiting_for_the_slower_is_part_of_the_faster_ones_step():
    """45 s of the first step, as communication; its timeline lasts as long as the step."""
    log = serve({0: [Request(0, 0.0, 5, 2)], 1: [Request(1, 0.0, 50, 2)]}, by_tokens)
    for step in log.of(Stepped):
        assert step.step_costs[0].seconds == step.end - step.start
    first = next(step for step in log.of(Stepped) if step.engine == 0)
    *_, last = first.step_costs[0]
    assert (last.label, last.seconds, last.bound) == ("wait_for_ranks", 45, "communication")


def test_who_has_nothing_to_do_holds_nobody_up():
    log = serve({0: [Request(0, 0.0, 5, 4)], 1: [Request(1, 0.0, 5, 1)]})
    assert spans(log, 0) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert spans(log, 1) == [(0, 10)]


def test_who_has_nothing_to_do_computes_a_dummy():
    """The steps of a round begin and end together on all ranks; a second of a dummy's ten is work, the rest waiting."""
    log = serve({0: [Request(0, 0.0, 5, 4)], 1: [Request(1, 0.0, 5, 1)], 2: []},
                lambda batch: 10.0 if batch.samples else 1.0)
    assert spans(log, 1, dummies=True) == [(10, 20), (20, 30), (30, 40)]
    assert spans(log, 2, dummies=True) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    for step in log.of(Stepped):
        *_, last = step.step_costs[0]
        assert (last.label, last.seconds) == ("wait_for_ranks", 0.0 if step.batch.tokens else 9.0)


def test_each_dummy_costs_what_it_costs_its_engine():
    """Engines whose links differ price differently; those that price alike have the very same step."""
    env, log = simpy.Environment(), Log()
    group = DataParallelGroup(env, 4)
    seconds = (10.0, 1.0, 2.0, 2.0)
    engines = [engine(env, log, number, steps=(each,), group=group) for number, each in enumerate(seconds)]
    engines[0].submit(Request(0, 0.0, 5, 1), lambda: None)
    env.run()
    own = [step.step_costs[0] for step in sorted(log.of(Stepped), key=lambda step: step.engine)]
    assert [[kernel.seconds for kernel in cost] for cost in own] == [[10.0, 0.0], [1.0, 9.0], [2.0, 8.0], [2.0, 8.0]]
    assert own[2] == own[3]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_steps_of_an_engine_are_numbered_in_the_order_of_their_rounds(ahead, depth, monkeypatch):
    """Dummies too, though they need not wait for a host that takes 3 s to take in the batch ahead of them."""
    requests = {number: [Request(10 * number + i, 30.0 * i * number, 4, 1 + number) for i in range(3)]
                for number in range(3)}
    env, log = simpy.Environment(), Log()
    group, added = DataParallelGroup(env, 3), []
    add = log.add
    monkeypatch.setattr(log, "add", lambda event: (added.append(event), add(event)))
    engines = [engine(env, log, number, steps=(1.0,) * depth, group=group, host=SLOW, async_scheduling=ahead)
               for number in range(3)]
    for number, asked in requests.items():
        for request in asked:
            env.timeout(request.arrival).callbacks.append(
                lambda _, number=number, request=request: engines[number].submit(request, lambda: None))
    env.run()
    assert len(list(log.of(Finished))) == 9
    for number in range(3):
        own = [step for step in added if isinstance(step, Stepped) and step.engine == number]
        assert [step.index for step in own] == list(range(len(own)))
        assert [step.end for step in own] == sorted({step.end for step in own})
        assert any(not step.batch.tokens for step in own)


def test_who_comes_late_joins_the_next_round():
    """At 12 the second round is under way: the new prompt goes with the third, at 20."""
    log = serve({0: [Request(0, 0.0, 5, 4)], 1: [Request(1, 12.0, 5, 1)]})
    assert spans(log, 0)[:3] == [(0, 10), (10, 20), (20, 30)]
    assert spans(log, 1) == [(20, 30)]


@pytest.mark.parametrize("ahead", [False, True])
def test_every_round_is_made_of_one_step_of_each_that_has_work(ahead):
    """Whoever is in a round ends with it, however many requests come and go."""
    requests = {number: [Request(10 * number + i, 3.0 * i + number, 20 + 7 * number, 3 + i) for i in range(4)]
                for number in range(3)}
    log = serve(requests, by_tokens, async_scheduling=ahead)
    ends = {number: [end for _, end in spans(log, number)] for number in requests}
    every = sorted({end for some in ends.values() for end in some})
    for some in ends.values():
        assert some == sorted(some) and len(set(some)) == len(some)
    # Rounds do not overlap: who takes part in one has no step that lies across its end.
    for number in requests:
        for start, end in spans(log, number):
            assert not any(start < moment < end for moment in every), (number, start, end)


def test_members_without_work_bring_a_token_each():
    env = simpy.Environment()
    group = DataParallelGroup(env, 4)
    brought = []

    def member(number, tokens):
        joined = yield from group.join(number, tokens)
        brought.append(sorted(joined.tokens_by_rank))

    for number in (0, 2):
        group.expect(number)
    env.process(member(0, 30))
    env.process(member(2, 7))
    env.run()
    assert brought == [[1, 1, 7, 30]] * 2
