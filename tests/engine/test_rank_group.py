"""Ranks as processes: they meet, and exchange pieces."""

from itertools import pairwise

import pytest
import simpy

from ksim.compute.graph import Collective
from ksim.engine.ranks import Barrier, RankGroup, RankProgram, Segment
from ksim.flow.costs import ClockScaling
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.network.routes import Hop, Route
from tests.cost.toys import network
from tests.engine.by_hand import timeline
from tests.engine.process_by_process import Exchange


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
    barrier, met = Barrier(env, 3), []

    def come(moment):
        yield barrier.join(moment, 3)
        met.append(env.now)

    for moment in (1, 5, 2):
        env.process(come(moment))
    env.run()
    assert met == [8, 8, 8]


def test_a_meeting_can_be_held_again():
    env = simpy.Environment()
    barrier, met = Barrier(env, 2), []

    def come(*delays):
        for delay in delays:
            yield barrier.join(env.now + delay, 0)
            met.append(env.now)

    env.process(come(1, 1))
    env.process(come(4, 7))
    env.run()
    assert met == [4, 4, 11, 11]


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


@pytest.fixture
def rank_group():
    """Four GPUs of an HGX H200."""
    return RankGroup(simpy.Environment(), network("hgx-h200", "ring"), range(4), {"tensor": range(4)})


def test_a_rank_group_executes_every_kernel_and_collective(rank_group):
    """Two runs of a kernel, an all-reduce and a kernel."""
    message = Collective("all_reduce", 1e6, "tensor")
    seconds = rank_group.network.seconds(message, range(4))
    summed = KernelCost.of("b", "all_reduce", seconds, group="tensor", shape=str(message))
    block = PricedBlock.of((KernelCost.of("a", "gemm", 2.0), summed, KernelCost.of("c", "gemm", 3.0)), repeat=2)
    rank_group.env.run(rank_group.play(StepCost.of([block])))
    assert rank_group.env.now == pytest.approx(2 * (5 + seconds), rel=1e-12)


@pytest.mark.parametrize("message, hidden", [("all_reduce", "compute"), ("compute", "all_reduce")])
def test_what_is_hidden_runs_beside_the_next_at_the_boost_clock(rank_group, message, hidden):
    """Whichever lane it is in, the longer one decides, and computes half as fast."""
    sent = Collective("all_reduce", 1e6, "tensor")
    seconds = rank_group.network.seconds(sent, range(4))

    def span(name, times, **more):
        if name == "all_reduce":
            return KernelCost.of("sum", name, seconds, group="tensor", **more)
        return KernelCost.of("product", name, times * seconds, bound="compute", **more)

    short = span(hidden, 0.9).beside()
    timeline = StepCost.of([PricedBlock.of((short, span(message, 1.5)), repeat=3)])
    pace = ClockScaling(2.0, 1.0, 1e9)
    rank_group.env.run(rank_group.play(timeline, pace))
    assert rank_group.env.now == pytest.approx(timeline.seconds_at(pace), rel=1e-12)
    assert rank_group.env.now == pytest.approx(3 * seconds * (1 if message == "all_reduce" else 3), rel=1e-12)


def test_a_rank_group_can_play_one_timeline_after_another(rank_group):
    ends = []
    for _ in range(3):
        rank_group.env.run(rank_group.play(timeline(1.0, 2.0)))
        ends.append(rank_group.env.now)
    assert [b - a for a, b in pairwise([0, *ends])] == [3, 3, 3]


def test_ranks_may_run_segments_of_their_own(rank_group):
    """The second keeps the others up in the first segment; beside its collective of 2 s, the third computes for 9 s."""
    segments = [[Segment(alone, 2, beside), Segment(1, 0, 0)] for alone, beside in ((3, 1), (5, 1), (4, 9), (3, 0))]
    rank_group.env.run(rank_group.run_segments(segments))
    assert rank_group.env.now == 4 + 9 + 1


def test_blocks_are_cut_into_segments_once(rank_group, monkeypatch):
    cut = []
    of = RankProgram.of
    monkeypatch.setattr(RankProgram, "of", lambda blocks: cut.append(blocks) or of(blocks))
    blocks = (PricedBlock.of((0, KernelCost.of("a", "gemm", 2.0)), repeat=2),)
    for seconds in (1.0, 3.0):
        rank_group.env.run(rank_group.play(StepCost.of(blocks, [KernelCost.of("b", "gemm", seconds)])))
    assert (rank_group.env.now, cut) == (6 + 10, [blocks])
