"""Any log: fabricated runs of many shapes, of plain replicas or of fleets, whole or cut short."""

from math import inf

from attrs import evolve
from hypothesis import strategies as st

from ksim.flow.log import Log

from . import fabricate, fleet


@st.composite
def logs(draw: st.DrawFn) -> Log:
    whole = fabricate.log(
        count=draw(st.integers(1, 25)),
        rate=draw(st.sampled_from([2.0, 30.0, 5000.0])),
        output=draw(st.sampled_from([2, 12])),
        engines=draw(st.integers(1, 3)),
        ranks=draw(st.sampled_from([1, 2])),
        stages=draw(st.sampled_from([1, 2])),
        preempt_every=draw(st.sampled_from([0, 5])),
        seats=draw(st.sampled_from([2, 64])),
    )
    after, reach = draw(st.sampled_from([inf, inf, 0.0, 0.01, 0.5])), draw(st.sampled_from([0.0, 0.25]))
    whole.engines = [evolve(built, sleep_watts=60.0, sleep_after=after, reach=reach) for built in whole.engines]
    share = draw(st.sampled_from([1.0, 1.0, 0.5]))
    return fabricate.cut(whole, share * whole.events[-1].time)


@st.composite
def fleets(draw: st.DrawFn) -> Log:
    """Runs of split requests, with any style of connector."""
    whole = fleet.log(
        count=draw(st.integers(1, 30)),
        rate=draw(st.sampled_from([2.0, 30.0, 5000.0])),
        output=draw(st.sampled_from([2, 12])),
        prefill=draw(st.integers(1, 3)), decode=draw(st.integers(1, 3)),
        ranks=draw(st.sampled_from([1, 2])),
        style=fleet.Style(*(draw(st.booleans()) for _ in range(4))),
        preempt_every=draw(st.sampled_from([0, 5])),
        seats=draw(st.sampled_from([2, 64])),
        decode_first=draw(st.booleans()), seed=draw(st.integers(1, 9)),
    )
    share = draw(st.sampled_from([1.0, 1.0, 0.5]))
    cut = fabricate.cut(whole, share * whole.events[-1].time)
    cut.links += whole.links
    return cut
