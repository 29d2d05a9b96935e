"""The engine's loop, its times counted by hand: 2 s of host before each step, 3 s after it, 10 s of GPU between."""

import pytest
import simpy
from attrs import evolve, frozen

from ksim.cluster.cluster import Cluster
from ksim.cluster.routers.by_load import RoundRobin
from ksim.flow.events import Admitted, Finished, Preempted, Received, Rejected, Stepped
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation.errors import KsimError
from ksim.specs.host import Pace
from ksim.testing.history import HistoryRecorder
from ksim.testing.invariants import breach
from ksim.testing.invariants.tokens import nothing_in_flight_when_admitted
from tests.engine.by_hand import SLOW, engine, play, token_times
from tests.specs.hosts import host

ONE = Request(0, 0.0, prompt=5, output=3)


def test_without_asynchronous_scheduling_the_gpu_waits_for_the_host():
    """0 - 2 host, 2 - 12 GPU, 12 - 15 host; then the next."""
    log = play([ONE], host=SLOW).log
    assert token_times(log, 0) == [15, 30, 45]
    assert [(step.scheduled, step.start, step.end, step.time) for step in log.of(Stepped)] == [
        (0, 2, 12, 15), (15, 17, 27, 30), (30, 32, 42, 45)]


def test_with_asynchronous_scheduling_the_host_hides_behind_the_gpu():
    """The second step is made from 2 to 4, while the first is on the GPU, which begins with it at 12."""
    log = play([ONE], host=SLOW, async_scheduling=True).log
    assert token_times(log, 0) == [15, 25, 35]
    assert [(step.start, step.end) for step in log.of(Stepped)] == [(2, 12), (12, 22), (22, 32)]


def test_a_host_slower_than_the_gpu_sets_the_pace():
    """5 s of host for each step of 1 s, but for the last, after which there is no batch to make."""
    log = play([Request(0, 0.0, prompt=5, output=4)], host=SLOW, steps=(1.0,), async_scheduling=True).log
    assert token_times(log, 0) == [7, 12, 17, 20]


@pytest.mark.parametrize("ahead", [False, True])
def test_an_arrival_is_seen_when_a_turn_begins(ahead):
    """At 3 the engine waits for a step, or makes the next one: its next turn begins at 15."""
    log = play([ONE, Request(1, 3.0, 5, 1)], host=SLOW, async_scheduling=ahead).log
    assert [event.time for event in log.of(Admitted)] == [0, 15]


def test_an_engine_that_sleeps_wakes_up_at_once():
    log = play([ONE, Request(1, 100.0, 5, 1)]).log
    assert [event.time for event in log.of(Admitted)] == [0, 100]
    assert token_times(log, 1) == [110]


def test_the_first_token_leaves_with_the_last_chunk_of_the_prompt():
    """250 tokens in steps of at most 100: the third one samples."""
    log = play([Request(0, 0.0, prompt=250, output=2)]).log
    assert [step.batch.tokens for step in log.of(Stepped)] == [100, 100, 50, 1]
    assert token_times(log, 0) == [30, 40]


def test_a_slow_host_takes_longer_over_all_that_the_engine_does_and_gpus_do_not():
    """Twice as long from 15 on, which is when the second turn begins: 4 s before the step, 6 after it."""
    log = play([ONE], host=evolve(SLOW, pace=Pace((1.0, 2.0), (0.0, 15.0))), launch=8.0).log
    assert [(step.scheduled, step.prepared, step.end, step.time) for step in log.of(Stepped)] == [
        (0, 2, 12, 15), (15, 19, 35, 41), (41, 45, 61, 67)]


def test_the_host_takes_longer_over_more_sequences():
    slow = host(core={"schedule_sequence": 1, "update_sequence": 2}, worker={"prepare_sequence": 3},
                client={"deliver_sequence": 5})
    log = play([Request(i, 0.0, 5, 1) for i in range(3)], host=slow).log
    (step,) = log.of(Stepped)
    assert (step.prepared, step.start, step.end, step.taken, step.time) == (12, 12, 22, 28, 43)


@pytest.mark.parametrize("ahead", [False, True])
def test_tokens_reach_users_no_faster_than_one_process_streams_them(ahead):
    """Steps of 10 s give two tokens each, which take 14 s; the engine goes on meanwhile."""
    log = play([Request(i, 0.0, 5, 4) for i in range(2)], host=host(client={"stream": 7}), async_scheduling=ahead).log
    assert [step.time for step in log.of(Stepped)] == [24, 38, 52, 66]
    assert [step.end for step in log.of(Stepped)] == [10, 20, 30, 40]


def test_the_gpu_starts_before_all_is_launched_and_does_not_end_before():
    """Inputs are there at 1; a step of 10 s whose launches take 4 ends at 11, one whose launches take 30 at 31."""
    for launch, end in ((4.0, 11), (30.0, 31)):
        log = play([Request(0, 0.0, 5, 1)], host=host(worker={"prepare": 1}), launch=launch).log
        assert [(step.start, step.end) for step in log.of(Stepped)] == [(1, end)]


def test_one_gpu_is_driven_by_the_loop_itself_several_are_not():
    """Launches of 30 s keep the loop from making the second step; workers of their own let it.

    Their GPUs have the first token at 31: stage 0 is launched at 30, and stage 1 works for a second after it.
    """
    one = play([ONE], launch=30.0, async_scheduling=True).log
    assert [step.scheduled for step in one.of(Stepped)] == [0, 30, 60]
    two = play([ONE], steps=(1.0, 1.0), launch=30.0, async_scheduling=True).log
    assert [step.scheduled for step in two.of(Stepped)][:2] == [0, 0]
    assert [step.start for step in two.of(Stepped)][:2] == [0, 31]


def test_requests_come_in_one_by_one_and_late():
    """Accepted at 2, 4 and 6, and 5 later with the engine; more for longer prompts."""
    client = {"accept": 2, "travel": 5, "travel_token": 0.1}
    log = play([Request(0, 0.0, 10, 1), Request(1, 0.0, 20, 1), Request(2, 0.0, 10, 1)], host=host(client=client)).log
    assert [(event.request_id, event.time) for event in log.of(Received)] == [(0, 8), (1, 11), (2, 12)]
    assert [event.time for event in log.of(Admitted)] == [8, 18, 18]


def test_an_engine_that_slept_takes_some_time_to_wake_up():
    """Whoever comes in the meantime is in the first batch."""
    log = play([Request(0, 100.0, 5, 1), Request(1, 101.0, 5, 1)], host=host(core={"wake": 2})).log
    assert [event.time for event in log.of(Admitted)] == [102, 102]


def test_tokens_reach_the_users_in_order_while_the_engine_goes_on():
    """Each step of 10 s takes 25 s to deliver; a step is scheduled when the one before is taken in."""
    log = play([ONE], host=host(client={"deliver": 25})).log
    assert [(step.scheduled, step.taken, step.time) for step in log.of(Stepped)] == [
        (0, 10, 35), (10, 20, 45), (20, 30, 55)]
    assert [event.time for event in log.of(Finished)] == [55]


def test_no_token_of_a_request_comes_from_a_step_that_begins_before_the_last_one_is_known():
    """Two stages of 10 s and 20 s, made ahead: the third batch needs the first one's token, so it waits for it."""
    log = play([ONE], steps=(10.0, 20.0), async_scheduling=True).log
    assert [(step.start, step.end) for step in log.of(Stepped)] == [(0, 30), (30, 60), (60, 90)]


@pytest.mark.parametrize("ahead", [False, True])
def test_stages_work_on_different_batches_at_the_same_time(ahead):
    """Two prompts that fill a batch each: the second enters stage 0 when the first has left it."""
    log = play([Request(0, 0.0, 100, 2), Request(1, 0.0, 100, 2)], steps=(10.0, 10.0), async_scheduling=ahead).log
    assert [(step.start, step.end) for step in log.of(Stepped)] == [(0, 20), (10, 30), (20, 40), (30, 50)]


@pytest.mark.parametrize("ahead", [False, True])
def test_nobody_is_admitted_again_while_tokens_of_it_are_in_the_stages(ahead):
    """Four stages, and blocks for two of six requests at their longest."""
    env, log = simpy.Environment(), Log()
    served = engine(env, log, steps=(10.0,) * 4, blocks=17, max_num_batched_tokens=16, async_scheduling=ahead,
                    scheduler_reserve_full_isl=False)
    scheduler = served.scheduler = HistoryRecorder(served.scheduler)
    env.process(Cluster(env, RoundRobin(), [served], log, None, lambda: None).serve(
        [Request(number, 0.0, prompt=40 + 17 * number, output=30) for number in range(6)]))
    env.run()
    assert (len([*log.of(Preempted)]) > 3, len([*log.of(Finished)])) == (True, 6)
    assert breach(scheduler.history, nothing_in_flight_when_admitted) is None


@frozen
class Idle:
    def propose(self, waiting, running, now):
        return ()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_policy_that_schedules_nothing_is_named_and_never_hangs(ahead):
    with pytest.raises(KsimError, match=r"policy Idle with admission Always schedules nothing .* 1 requests waiting"):
        play([ONE], policy=Idle(), async_scheduling=ahead)


@frozen
class Patient:
    """Takes nobody in before there are three."""

    def propose(self, waiting, running, now):
        jobs = list(waiting)
        return [(job, 100) for job in (*running, *jobs)] if running or len(jobs) >= 3 else ()


def test_a_policy_may_wait_for_requests_that_are_on_their_way():
    """They come at 5, 6 and 7: with nothing in flight, the engine waits for the third."""
    log = play([Request(number, 0.0, 5, 1) for number in range(3)], policy=Patient(),
               host=host(client={"accept": 1, "travel": 4})).log
    assert [event.time for event in log.of(Admitted)] == [7, 7, 7]


@frozen
class Selfless:
    """Proposes one running job or else a waiting one, and has that very job preempted when the cache is full."""

    def propose(self, waiting, running, now):
        return [(job, 100) for job in (*running[:1], *waiting)][:1] if len(running) == 2 else [
            (job, 100) for job in (*running, *waiting)]

    def victim(self, running):
        return running[0]


def test_a_turn_that_only_preempts_is_followed_by_another():
    """Two requests of one block each outgrow a cache of two: the first preempts none, then the second runs."""
    cluster = play([Request(0, 0.0, 16, 3), Request(1, 0.0, 16, 3)], policy=Selfless(), blocks=2)
    assert [event.request_id for event in cluster.log.of(Preempted)] == [0]
    assert {event.request_id for event in cluster.log.of(Finished)} == {0, 1}


def test_a_prompt_that_leaves_no_room_for_output_is_rejected():
    log = play([Request(0, 0.0, 1000, 1), Request(1, 0.0, 999, 7)]).log
    (rejected,) = log.of(Rejected)
    assert rejected.request_id == 0
    assert rejected.reason == "its prompt of 1000 tokens leaves no room for output in max_model_len = 1000"
    assert len(token_times(log, 1)) == 1  # of the 7 asked for, what max_model_len allows


@pytest.mark.parametrize("ahead", [False, True])
def test_a_request_runs_if_and_only_if_its_cache_fits(ahead):
    """Four blocks hold 64 tokens: a prompt of 60 with 5 of output, the last of which is never computed on."""
    log = play([Request(0, 0.0, 60, 5), Request(1, 0.0, 60, 6)], blocks=4, async_scheduling=ahead).log
    assert len(token_times(log, 0)) == 5
    (rejected,) = log.of(Rejected)
    assert rejected.request_id == 1
    assert rejected.reason == "its cache of 65 tokens needs 5 KV blocks of 16, and there are 4"


def test_a_request_is_outstanding_from_its_submission_to_its_last_token():
    env, log = simpy.Environment(), Log()
    served = engine(env, log)
    short, long = env.event(), env.event()
    served.submit(Request(0, 0.0, 5, 1), short.succeed)
    served.submit(Request(1, 0.0, 5, 3), long.succeed)
    assert served.outstanding == 2
    env.run(short)
    assert (env.now, served.outstanding) == (10, 1)
    env.run(long)
    assert (env.now, served.outstanding, len([*log.of(Stepped)])) == (30, 0, 3)


def test_an_engine_knows_how_much_of_a_prompt_it_has_cached():
    """40 tokens are 2 full blocks of 16 named ones; the last token of a prompt is always computed again."""
    env = simpy.Environment()
    served = engine(env, Log())
    first = Request(0, 0.0, 40, 1, chunks=("a", "b"))
    assert served.prefix_hit(first) == 0
    done = env.event()
    served.submit(first, done.succeed)
    env.run(done)
    assert served.prefix_hit(Request(1, 0.0, 50, 1, chunks=("a", "b", "c"))) == 32
    assert served.prefix_hit(Request(2, 0.0, 32, 1, chunks=("a", "b"))) == 16
    assert served.prefix_hit(Request(3, 0.0, 50, 1, chunks=("x", "b", "c"))) == 0
