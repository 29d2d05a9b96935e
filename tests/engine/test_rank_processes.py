"""Ranks as processes: they meet, exchange pieces, and are told apart by what they wait for."""

from itertools import pairwise

import numpy as np
import pytest
import simpy

from ksim.compute.graph import Collective
from ksim.engine.rank_processes import Meeting
from ksim.engine.rank_programs import RankProgram
from ksim.engine.ranks import LaunchTimes
from ksim.flow.costs import ClockScaling
from ksim.flow.events import WAITS
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.network.routes import Hop, Route
from ksim.specs.hardware import SlowGpu
from tests.cost.toys import network
from tests.engine.by_hand import timeline
from tests.engine.process_by_process import Exchange
from tests.engine.ranks_by_hand import Ranks


def exchange(route: Route, size: float, ranks: range) -> dict[int, float]:
    """When each rank is through with *route*."""
    env, through = simpy.Environment(), {}
    together = Exchange(env, route, size)

    def rank(number):
        yield from together.take_part(number)
        through[number] = env.now

    for number in ranks:
        env.process(rank(number))
    env.run()
    return through


def test_a_meeting_begins_when_the_last_will_be_there_and_ends_for_all():
    """They come at 1, 5 and 2, and say so at once; together, they take 3 s."""
    env = simpy.Environment()
    meeting, met = Meeting(env, 3, 3.0), []

    def come(moment):
        meeting.join(moment)
        yield meeting
        met.append(env.now)

    for moment in (1, 5, 2):
        env.process(come(moment))
    env.run()
    assert (met, meeting.latest, meeting.end) == ([8, 8, 8], 5, 8)


def test_whoever_comes_to_a_meeting_that_has_ended_goes_on_at_once():
    """The only one that was missing says at 9 that it came at 5."""
    env = simpy.Environment()
    meeting = Meeting(env, 1, 3.0)
    env.run(9)
    meeting.join(5)
    env.run(meeting)
    assert (env.now, meeting.end) == (9, 8)


def test_a_rank_sends_on_when_it_has_received_all_of_the_round_before():
    """0 sends to 1 for 2 s and 2 to 1 for 5 s; then 1 sends to 0 for 1 s: 10 s of start, then 5, then 6."""
    route = Route("test", "test", 10.0, ((Hop(0, 1, 2.0, 0.0), Hop(2, 1, 5.0, 0.0)), (Hop(1, 0, 1.0, 0.0),)))
    assert exchange(route, 1.0, range(3)) == {0: 16, 1: 16, 2: 15}
    assert route.seconds(1.0) == 16


def test_a_rank_sends_on_when_it_has_sent_all_of_the_round_before():
    """0 hears from 1 after 1 s, but has its link free after 5 s only: its second piece arrives after 10 s."""
    route = Route("test", "test", 0.0, ((Hop(0, 1, 5.0, 0.0), Hop(1, 0, 1.0, 0.0)), (Hop(0, 1, 5.0, 0.0),)))
    assert exchange(route, 1.0, range(2)) == {0: 10, 1: 10}
    assert route.seconds(1.0) == 10


def test_hops_that_do_not_wait_for_each_other_go_at_once():
    """0 to 1, and in the next round 2 to 3, who had nothing to wait for."""
    route = Route("test", "test", 0.0, ((Hop(0, 1, 4.0, 0.0),), (Hop(2, 3, 4.0, 0.0),)))
    assert exchange(route, 1.0, range(4)) == dict.fromkeys(range(4), 4)
    assert route.seconds(1.0) == 4


def test_a_message_takes_its_bytes():
    route = Route("test", "test", 1.0, ((Hop(0, 1, 2.0, 0.5),),))
    assert exchange(route, 8.0, range(2)) == {0: 7, 1: 7}


def summed(seconds: float, times: tuple[float, float] = (2.0, 3.0), repeat: int = 2) -> StepCost:
    """A kernel, an all-reduce of *seconds*, and a kernel; the kernels take *times*."""
    spans = (KernelCost.of("a", "gemm", times[0]), KernelCost.of("b", "all_reduce", seconds, group="tensor"),
             KernelCost.of("c", "gemm", times[1]))
    return StepCost.of([PricedBlock.of(spans, repeat=repeat)])


def test_ranks_execute_every_kernel_and_collective():
    """Two runs of a kernel, an all-reduce and a kernel, on four GPUs of an HGX H200."""
    seconds = network("hgx-h200", "ring").seconds(Collective("all_reduce", 1e6, "tensor"), range(4))
    for ranks in (1, 4):
        assert Ranks.of([[1.0] * ranks]).play(summed(seconds)) == pytest.approx(2 * (5 + seconds), rel=1e-12)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("message, hidden", [("all_reduce", "compute"), ("compute", "all_reduce")])
def test_what_is_hidden_runs_beside_the_next_at_the_boost_clock(ranks, message, hidden):
    """Whichever lane it is in, the longer one decides, and computes half as fast."""
    def span(name, times, **more):
        if name == "all_reduce":
            return KernelCost.of("sum", name, times, group="tensor", **more)
        return KernelCost.of("product", name, times, bound="compute", **more)

    timeline = StepCost.of([PricedBlock.of((span(hidden, 0.9).beside(), span(message, 1.5)), repeat=3)])
    pace = ClockScaling(2.0, 1.0, 1e9)
    ended = Ranks.of([[1.0] * ranks], [pace] * ranks).play(timeline)
    assert ended == pytest.approx(timeline.seconds_at(pace), rel=1e-12)
    assert ended == pytest.approx(4.5 if message == "all_reduce" else 9, rel=1e-12)


def test_a_product_beside_a_message_is_as_slow_as_its_gpu():
    """Of 3 s beside a message of 4: 9 s on a GPU of a third of the speed, for which the others wait in the next."""
    spans = (KernelCost.of("product", "gemm", 3.0).beside(), KernelCost.of("sum", "all_reduce", 4.0, group="tensor"))
    assert Ranks.of([[1.0, 3.0]]).play(StepCost.of([PricedBlock.of(spans, repeat=2)])) == 18


def test_ranks_compute_one_step_after_another():
    ranks = Ranks.of([[1.0] * 4])
    ends = [ranks.play(timeline(1.0, 2.0)) for _ in range(3)]
    assert [after - before for before, after in pairwise([0, *ends])] == [3, 3, 3]
    assert [(met.start, met.time) for met in ranks.met] == [(0, 3), (3, 6), (6, 9)]


def test_ranks_begin_a_step_as_soon_as_each_has_done_the_one_before():
    """The slow one has 6 s for each step; the others wait for it at the end, though they were done with theirs."""
    ranks = Ranks.of([[1.0, 2.0]])
    first, second = ranks.send(timeline(3.0)), ranks.send(timeline(3.0))
    ranks.env.run()
    assert [share.done.end for share in (*first, *second)] == [6, 12]


def test_a_step_is_not_done_before_its_last_kernel_is_launched():
    """Computed in 3 s from 1 on, and launched until 9; the slow one needs 12 s."""
    assert Ranks.of([[1.0, 1.0]]).play(timeline(3.0), times=[LaunchTimes(1.0, 9.0)]) == 9
    assert Ranks.of([[1.0, 4.0]]).play(timeline(3.0), times=[LaunchTimes(1.0, 9.0)]) == 13


def test_engines_that_share_experts_meet_in_their_collectives_alone():
    """Ranks of a place in both meet for 2 s, from 5 on; then each engine goes on for itself, for 1 s or for 7."""
    def step(before, after):
        spans = (KernelCost.of("a", "gemm", before), KernelCost.of("b", "all_gather", 2.0, group="data"),
                 KernelCost.of("c", "gemm", after))
        return StepCost.of([PricedBlock.of(spans)])

    ranks = Ranks.of([[1.0, 1.0], [1.0, 1.0]])
    shares = ranks.send(step(5.0, 1.0), step(3.0, 7.0))
    ranks.env.run()
    assert [share.done.end for share in shares] == [8, 14]
    (met,) = ranks.met
    assert met.busy.tolist() == [6, 6, 10, 10] and met.gpus.tolist() == [0, 1, 2, 3]
    assert met.waits[WAITS.index("requests")].tolist() == [0, 0, 2, 2]
    assert met.waits.sum() == 4


def test_meetings_of_all_experts_have_all_ranks_of_all_engines():
    """Each engine's ranks meet first; the slow one of the second engine keeps up both."""
    spans = (KernelCost.of("a", "gemm", 2.0), KernelCost.of("b", "all_reduce", 1.0, group="tensor"),
             KernelCost.of("c", "gemm", 2.0), KernelCost.of("d", "dispatch", 3.0, group="expert"))
    ranks = Ranks.of([[1.0, 1.0], [1.0, 2.0]])
    assert ranks.play(*[StepCost.of([PricedBlock.of(spans)])] * 2) == 4 + 1 + 4 + 3
    (met,) = ranks.met
    assert met.waits[WAITS.index("clock")].tolist() == [4, 4, 4, 0]


@pytest.mark.parametrize("slowness, paces, cause, waits", [
    ([1.0, 1.5, 3.0], [1.0, 1.0, 1.0], "clock", [8, 6, 0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 1.5], "clock", [2, 0, 1])])
def test_ranks_wait_for_the_slowest_and_say_for_what(slowness, paces, cause, waits):
    """A kernel of 2 s that the clock paces, a message of 5, and a kernel of 2 s that it does not."""
    spans = (KernelCost.of("a", "gemm", 2.0, bound="compute"), KernelCost.of("b", "all_reduce", 5.0, group="tensor"),
             KernelCost.of("c", "gemm", 2.0))
    ranks = Ranks.of([slowness], list(map(ClockScaling, paces)))
    end = ranks.play(StepCost.of([PricedBlock.of(spans)]))
    (met,) = ranks.met
    assert met.waits[WAITS.index(cause)].tolist() == waits and met.waits.sum() == sum(waits)
    assert (met.busy + waits + 5).tolist() == [end] * 3


@pytest.mark.parametrize("launched, waits", [(0.0, [4, 0, 3]), (90.0, [8, 0, 6])])
def test_others_wait_for_the_host_that_is_late(launched, waits):
    """By 4 s, in the first message; and once more at the end, where all have long waited for launches of their own."""
    ranks = Ranks.of([[1.0] * 3], delays=lambda moment: [0.0, 4.0, 1.0])
    ranks.play(summed(5.0), times=[LaunchTimes(1.0, launched)])
    (met,) = ranks.met
    host = np.zeros_like(met.waits)
    host[WAITS.index("host")] = waits
    assert met.waits == pytest.approx(host)
    assert met.busy == pytest.approx(np.full(3, 10.0))


def test_a_gpu_is_slow_from_a_moment_on_until_another():
    """Kernels of 2 s, alone: it begins them at 0, 2, 6 (slow from 2 to 7), 10 and 12."""
    ranks = Ranks.of([[1.0, 1.0]])
    slow = ranks.stage.lanes[0].ranks[1]
    slow.changes, slow.varies = [SlowGpu(0, speed=0.5, start=2.0, end=7.0)], True
    assert [slow.slowness_at(moment) for moment in (0.0, 2.0, 6.9, 7.0)] == [1, 2, 2, 1]
    lap = (KernelCost.of("a", "gemm", 2.0), KernelCost.of("b", "all_reduce", 0.0, group="tensor"))
    assert ranks.play(StepCost.of([PricedBlock.of(lap, repeat=5)])) == 2 + 4 + 4 + 2 + 2


def test_blocks_are_cut_into_segments_once(monkeypatch):
    cut = []
    of = RankProgram.of
    monkeypatch.setattr(RankProgram, "of", lambda blocks, *more: cut.append(blocks) or of(blocks, *more))
    ranks, blocks = Ranks.of([[1.0] * 4]), (PricedBlock.of((0, KernelCost.of("a", "gemm", 2.0)), repeat=2),)
    for seconds in (1.0, 3.0):
        ranks.play(StepCost.of(blocks, [KernelCost.of("b", "gemm", seconds)]))
    assert (ranks.env.now, cut) == (6 + 10, [blocks])
