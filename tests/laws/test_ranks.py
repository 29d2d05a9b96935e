"""Segments take as long as ranks take kernel by kernel and piece by piece, however unlike they are."""

from collections.abc import Sequence
from itertools import chain

import pytest
import simpy
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.graph import Collective
from ksim.engine.rank_group import RankGroup
from ksim.engine.rank_program import RankProgram
from ksim.flow.timeline import Lap, Pace, Span, Timeline
from ksim.network.routes import Hop, Route
from tests.engine.process_by_process import Crowd
from tests.properties import examples

RANKS = 4


@frozen
class Streets:
    """A network that has one route for all messages."""

    only: Route

    def route(self, message: Collective, ranks: Sequence[int]) -> Route:
        return self.only

    def seconds(self, message: Collective, ranks: Sequence[int]) -> float:
        return self.only.seconds(message.bytes)


def hidden(span: Span) -> Span:
    return evolve(span, seconds=0.0, hidden=span.seconds)


seconds = st.floats(0.001, 9)
hops = st.builds(Hop, st.integers(0, RANKS - 1), st.integers(0, RANKS - 1), seconds, seconds).filter(
    lambda hop: hop.source != hop.target)
routes = st.builds(lambda start, rounds: Route("any", "any", start, tuple(map(tuple, rounds))), seconds,
                   st.lists(st.lists(hops, max_size=5), max_size=4))
products = st.builds(lambda seconds, bound: Span("product", "gemm", seconds, bound=bound), seconds,
                     st.sampled_from(["compute", "memory"]))
messages = st.builds(lambda size: Span("sum", "all_reduce", 1.0, group="tensor",
                                       shape=Collective("all_reduce", size, "tensor")), seconds)
#: Alone, or side by side: whichever of a product and a message it is that the other is hidden beside.
parts = st.one_of(
    products.map(lambda product: (product,)), messages.map(lambda message: (message,)), st.just((0,)),
    st.builds(lambda product, message: (hidden(product), message), products, messages),
    st.builds(lambda product, message: (hidden(message), product), products, messages))
laps = st.lists(st.builds(lambda parts, repeat: Lap(tuple(chain(*parts)), repeat), st.lists(parts, max_size=5),
                          st.integers(1, 4)), min_size=1, max_size=4)


def slower(span: Span | int, times: float) -> Span | int:
    """*span* on a GPU that takes so many times as long for what it computes."""
    if isinstance(span, int) or span.group:
        return span
    return evolve(span, seconds=times * span.seconds, hidden=times * span.hidden)


@given(laps=laps, route=routes, fill=products, pace=st.floats(1, 2),
       skews=st.lists(st.floats(1, 3), min_size=RANKS, max_size=RANKS))
@examples(200)
def test_segments_take_as_long_as_their_kernels_and_pieces(laps, route, fill, pace, skews):
    timelines = [Timeline.of([evolve(lap, spans=tuple(slower(span, times) for span in lap.spans)) for lap in laps],
                             [slower(fill, times)]) for times in skews]
    network, pace = Streets(route), Pace(pace)
    crowd = Crowd(simpy.Environment(), network, range(RANKS))
    crowd.env.run(crowd.play(timelines, pace))
    rank_group = RankGroup(simpy.Environment(), network, range(RANKS), {"tensor": range(RANKS)})
    programs = [RankProgram.of(timeline.laps, lambda span: network.seconds(span.shape, range(RANKS)))
                for timeline in timelines]
    segments = [program.timed(timeline.fills, pace) for program, timeline in zip(programs, timelines, strict=True)]
    rank_group.env.run(rank_group.run_segments(segments))
    assert rank_group.env.now == pytest.approx(crowd.env.now, rel=1e-12)
