"""Ranks take as long as their kernels and pieces one by one, however unlike they are, and what they wait for is told.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, pairwise

import numpy as np
import pytest
import simpy
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.graph import Collective
from ksim.engine.ranks import LaunchTimes
from ksim.flow.costs import ClockScaling
from ksim.flow.events import WAITS
from ksim.flow.steps import KernelCost, PricedBlock, StepCost
from ksim.network.routes import Hop, Route
from tests.engine.process_by_process import Crowd
from tests.engine.ranks_by_hand import Ranks
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


def each(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    """One of *numbers* for each rank; they may be alike."""
    return st.lists(numbers, min_size=RANKS, max_size=RANKS) | numbers.map(lambda number: [number] * RANKS)


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


Laps = Sequence[tuple[Sequence[KernelCost | int], int]]


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


def outlasting(laps: Laps, route: Route) -> Laps:
    """*laps* in which a product lasts at least as long as a message that is hidden beside it, as it would be priced."""
    made = []
    for spans, repeat in laps:
        longer = list(spans)
        for place, (span, product) in enumerate(pairwise(spans), 1):
            if not isinstance(span, int) and span.group and span.hidden:
                assert isinstance(product, KernelCost)
                longer[place] = product.replaced(seconds=max(product.seconds, route.seconds(span.lasts)))
        made.append((longer, repeat))
    return made


def step(laps: Laps, fill: KernelCost, of: Callable[[KernelCost | int], KernelCost | int]) -> StepCost:
    """*laps* as *of* has them; the batch has the kernel *fill*."""
    made = of(fill)
    assert isinstance(made, KernelCost)
    return StepCost.of([PricedBlock.of([of(span) for span in spans], repeat) for spans, repeat in laps], [made])


@given(laps=laps, route=routes, fill=products, paces=each(st.floats(1, 2)), slowness=each(st.floats(1, 3)))
@examples(200)
def test_segments_take_as_long_as_their_kernels_and_pieces(laps, route, fill, paces, slowness):
    """Ranks have clocks of their own, and take so many times as long for all that they compute."""
    laps = outlasting(laps, route)
    scalings, crowd = list(map(ClockScaling, paces)), Crowd(simpy.Environment(), Streets(route), range(RANKS))
    crowd.env.run(crowd.play([step(laps, fill, partial(slower, times=times)) for times in slowness], scalings))
    ranks = Ranks.of([slowness], scalings)
    assert ranks.play(step(laps, fill, partial(along, route))) == pytest.approx(crowd.env.now, rel=1e-12)


delays = each(st.floats(0, 5))


@given(laps=laps, route=routes, fill=products, paces=each(st.floats(1, 2)), slowness=each(st.floats(1, 3)),
       delays=delays, launched=st.sampled_from([0.0, 40.0]))
@examples(200)
def test_ranks_wait_as_long_as_the_last_one_is_later_and_causes_add_up(laps, route, fill, paces, slowness, delays,
                                                                        launched):
    """What a rank waited for at its meetings, by cause, is what it waited; the last one at each waits for nobody, and
    nobody who computes beside the message does."""
    laps = outlasting(laps, route)
    ranks = Ranks.of([slowness], list(map(ClockScaling, paces)), delays=lambda moment: delays)
    (share,) = ranks.send(step(laps, fill, partial(along, route)), times=[LaunchTimes(0.0, launched)])
    ranks.env.run()
    (met,) = ranks.met
    waited = [sum(min(meeting.latest - came, stalled) for meeting, came, stalled
                  in zip(part.meetings, part.came, part.stalled, strict=True)) for part in share.parts]
    assert met.waits.sum(axis=0) == pytest.approx(waited, rel=1e-9, abs=1e-9)
    if len(set(delays)) == 1:
        assert met.waits[WAITS.index("host")] == pytest.approx(0, abs=1e-9)
    if len(set(slowness)) == len(set(paces)) == 1:
        assert met.waits[WAITS.index("clock")] == pytest.approx(0, abs=1e-9)
    assert not met.waits[[WAITS.index(cause) for cause in ("requests", "experts", "link")]].any()


@given(laps=laps, route=routes, fill=products, slowness=each(st.floats(1, 3)), delays=delays)
@examples(100)
def test_busy_waiting_and_in_collectives_is_all_that_a_rank_is(laps, route, fill, slowness, delays):
    """From its start to its end; where nothing runs beside a message, all ranks are as long in collectives."""
    alone = [([span for span in spans if isinstance(span, int) or not span.hidden], repeat) for spans, repeat in laps]
    ranks = Ranks.of([slowness], delays=lambda moment: delays)
    cost = step(alone, fill, partial(along, route))
    end = ranks.play(cost)
    (met,) = ranks.met
    messages = sum(count * span.seconds for span, count in cost.counted() if span.group)
    late = np.array(delays) - min(delays)
    assert met.start == min(delays)
    assert late + met.busy + met.waits.sum(axis=0) + messages == pytest.approx(
        np.full(RANKS, end - met.start), rel=1e-9, abs=1e-9)
