"""Segments take as long as ranks take kernel by kernel and piece by piece, however unlike they are."""

from collections.abc import Sequence
from itertools import chain

import pytest
import simpy
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.graph import Collective
from ksim.engine.ranks import RankGroup, RankProgram
from ksim.flow.costs import ClockScaling
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
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


def hidden(span: KernelCost) -> KernelCost:
    return span.beside()


seconds = st.floats(0.001, 9)
hops = st.builds(Hop, st.integers(0, RANKS - 1), st.integers(0, RANKS - 1), seconds, seconds).filter(
    lambda hop: hop.source != hop.target)
routes = st.builds(lambda start, rounds: Route("any", "any", start, tuple(map(tuple, rounds))), seconds,
                   st.lists(st.lists(hops, max_size=5), max_size=4))
products = st.builds(lambda seconds, bound: KernelCost.of("product", "gemm", seconds, bound=bound), seconds,
                     st.sampled_from(["compute", "memory"]))
#: Of so many bytes; how long they take depends on the route.
messages = st.builds(lambda size: KernelCost.of("sum", "all_reduce", size, group="tensor"), seconds)
#: Alone, or side by side: whichever of a product and a message it is that the other is hidden beside.
parts = st.one_of(
    products.map(lambda product: (product,)), messages.map(lambda message: (message,)), st.just((0,)),
    st.builds(lambda product, message: (hidden(product), message), products, messages),
    st.builds(lambda product, message: (hidden(message), product), products, messages))
laps = st.lists(st.builds(lambda parts, repeat: (tuple(chain(*parts)), repeat), st.lists(parts, max_size=5),
                          st.integers(1, 4)), min_size=1, max_size=4)


def slower(span: KernelCost | int, times: float) -> KernelCost | int:
    """*span* on a GPU that takes so many times as long for what it computes."""
    if isinstance(span, int) or span.group:
        return span
    return evolve(span.replaced(seconds=times * span.seconds), hidden=times * span.hidden)


def along(route: Route, span: KernelCost | int) -> KernelCost | int:
    """*span*, where it is a message, in the seconds that it takes along *route*."""
    if isinstance(span, int) or not span.group:
        return span
    taken = route.seconds(span.lasts)
    return evolve(span, hidden=taken) if span.hidden else span.replaced(seconds=taken)


@given(laps=laps, route=routes, fill=products, pace=st.floats(1, 2),
       skews=st.lists(st.floats(1, 3), min_size=RANKS, max_size=RANKS))
@examples(200)
def test_segments_take_as_long_as_their_kernels_and_pieces(laps, route, fill, pace, skews):
    skewed = [[([slower(span, times) for span in spans], repeat) for spans, repeat in laps] for times in skews]
    sized, timed = ([StepCost.of([PricedBlock.of([of(span) for span in spans], repeat) for spans, repeat in blocks],
                                 [slower(fill, times)]) for blocks, times in zip(skewed, skews, strict=True)]
                    for of in (lambda span: span, lambda span: along(route, span)))
    network, pace = Streets(route), ClockScaling(pace)
    crowd = Crowd(simpy.Environment(), network, range(RANKS))
    crowd.env.run(crowd.play(sized, pace))
    rank_group = RankGroup(simpy.Environment(), network, range(RANKS), {"tensor": range(RANKS)})
    rank_group.env.run(rank_group.run_segments([
        RankProgram.of(step.blocks).timed(step.batch_kernels, pace) for step in timed]))
    assert rank_group.env.now == pytest.approx(crowd.env.now, rel=1e-12)
