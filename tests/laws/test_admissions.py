"""Whatever the policy and the admission: limits are kept, no block is lost, every request gets exactly its tokens."""

from collections.abc import Sequence
from itertools import islice, product
from typing import Any

import pytest
from attrs import evolve, frozen
from hypothesis import given

from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.scheduling.admissions.always import Always
from ksim.scheduling.admissions.future_memory import FutureMemory
from ksim.scheduling.admissions.reserve_output import ReserveOutput
from ksim.scheduling.job import Job, State
from ksim.scheduling.policies.orders import Fcfs
from ksim.testing.loop import Loop, loop
from tests.laws.limits import AGES, check_batch, check_blocks, policy
from tests.properties import examples
from tests.scheduling.proposing import PAUSES, ProposingFcfs, seen
from tests.scheduling.workloads import Workload, workloads

NAMES = catalog.names("scheduling.admissions")


def admission(name: str, **options: Any) -> Any:
    return catalog.find("scheduling.admissions", name)(**options)


def under(workload: Workload, gate: Any) -> Workload:
    return evolve(workload, settings={**workload.settings, "admission": gate})


def play(workload: Workload, rules: Any) -> Loop:
    engine = loop()
    for engine in workload.play(rules):
        check_batch(engine)
        check_blocks(engine)
        assert engine.turns < AGES, "somebody starves"
    return engine


@pytest.mark.parametrize(("name", "gate"), [
    *product(catalog.names("scheduling.policies"), (admission(name) for name in NAMES if name != "always")),
    ("fcfs", FutureMemory(quantile=0.5)), ("fcfs", FutureMemory(reserve=0.3)), ("fcfs", FutureMemory(reserve=3.0)),
], ids=lambda value: value if isinstance(value, str) else type(value).__name__)
@given(workload=workloads(pipelines=True))
@examples(20)
def test_every_request_gets_exactly_its_tokens(name, gate, workload):
    engine = play(under(workload, evolve(gate)), policy(name))
    dropped = {number for _, number, _ in workload.aborts}
    for job, arrival in zip(engine.jobs, sorted(workload.arrivals, key=lambda arrival: arrival.turn), strict=True):
        tokens = min(arrival.output, engine.scheduler.limits.max_model_len - arrival.prompt)
        assert job.state is State.DONE
        assert job.sampled == tokens or job.number in dropped
    assert engine.cache.pool.used == 0


@frozen
class Exact:
    """Notes the counts that it is shown, and refuses now and then because of them."""

    shown: list[Any]

    def admits(self, job: Job, running: Sequence[Job], cache: Any) -> bool:
        self.shown.append([(each.number, each.num_computed_tokens, each.num_tokens, each.num_output_placeholders)
                           for each in (*running, job)])
        return not running or sum(each.num_tokens + each.num_computed_tokens for each in running) % 3 > 0


@given(workload=workloads())
@examples(150)
def test_the_counts_of_jobs_that_decode_are_true_ones(workload):
    """A policy that proposes has every job counted in every step."""
    lazy, counted = Exact([]), Exact([])
    both = zip(under(workload, lazy).play(Fcfs()), under(workload, counted).play(ProposingFcfs()), strict=True)
    for short, long in islice(both, PAUSES):
        assert seen(short) == seen(long)
    assert lazy.shown == counted.shown


@pytest.mark.parametrize("name", NAMES)
@given(workload=workloads(aborts=False))
@examples(40)
def test_admission_always_admits_what_the_scheduler_admits_alone(name, workload):
    """One request at a time meets no refusal: nothing else runs."""
    alone = evolve(workload, arrivals=workload.arrivals[:1])
    pairs = zip(alone.play(Fcfs()), under(alone, admission(name)).play(Fcfs()), strict=True)
    assert all(seen(one) == seen(other) for one, other in pairs)


@given(workload=workloads(aborts=False))
@examples(150)
def test_memory_reserved_for_outputs_leaves_no_request_preempted(workload):
    engine = play(under(workload, ReserveOutput()), Fcfs())
    assert not any(job.preemptions for job in engine.jobs)


# What sets them apart.


def starved(gate: Any) -> Loop:
    """Forty requests of short and long outputs, in a cache that holds a quarter of them at their longest."""
    engine = loop(admission=gate, blocks=120, prefix_caching=False, max_num_seqs=40)
    for number in range(40):
        engine.add(8, output=80 if number % 4 == 0 else 20, limit=80)
    engine.run()
    return engine


def preemptions(engine: Loop) -> int:
    return sum(job.preemptions for job in engine.jobs)


def test_admissions_that_look_ahead_preempt_fewer_and_closer_estimates_batch_more():
    always, future, reserving = (starved(gate) for gate in (Always(), FutureMemory(), ReserveOutput()))
    assert preemptions(always) > 10
    assert preemptions(future) < preemptions(always) / 4
    assert preemptions(reserving) == 0
    assert future.turns < reserving.turns


def test_the_more_is_held_in_reserve_the_fewer_give_way():
    counts = [preemptions(starved(FutureMemory(reserve=reserve))) for reserve in (0.1, 0.5, 1.0, 2.0)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_outputs_are_learned_from_those_that_have_ended():
    """The first might go on to its limit, and is left alone; once it has stopped early, two run at a time."""
    engine = loop(admission=FutureMemory(quantile=0.9), blocks=8, prefix_caching=False)
    for _ in range(6):
        engine.add(8, output=4, limit=30)
    assert [len(engine.turn()) for _ in range(9)] == [1, 1, 1, 1, 2, 2, 2, 2, 2]


def test_the_peak_of_demand_is_at_one_of_the_ends():
    """Of 10 tokens with 5 to come and 10 with 1, the two are largest together after one step, and the first at its end.

    The last token of an output is never computed on, and a last block counts as full.
    """
    engine = loop()
    long, short = engine.add(10, output=6), engine.add(10, output=2)
    assert FutureMemory().peak([long, short], 1) == 22
    assert FutureMemory().peak([long], 1) == 15
    assert FutureMemory().peak([long], 4) == 18
    assert FutureMemory(reserve=2).peak([long], 1) == 21


# One's own.


def test_a_function_is_enough_as_an_admission():
    def two_at_once(job, running, cache):
        return len(running) < 2

    engine = loop(admission=two_at_once)
    for _ in range(5):
        engine.add(4, output=3)
    assert [len(engine.turn()) for _ in range(4)] == [2, 2, 2, 2]


@pytest.mark.parametrize(("answer", "message"), [
    (lambda: None, "admission Own: answers None for request 0, not whether it may start, in step 1"),
    (lambda: 1 / 0, "admission Own: raises ZeroDivisionError: division by zero, in step 1"),
])
def test_an_answer_that_makes_no_sense_is_named(answer, message):
    class Own:
        def admits(self, job, running, cache):
            return answer()

    engine = loop(admission=Own())
    engine.add(4)
    with pytest.raises(ConfigError, match=message):
        engine.turn()
