"""A log of three steps and three requests, small enough to know every number of."""

from attrs import evolve

from ksim.flow.batch import Batch
from ksim.flow.events import (
    Admitted,
    Arrived,
    Emitted,
    EngineBuilt,
    Event,
    Finished,
    Rejected,
    Routed,
    Stepped,
)
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.flow.steps import KernelCost, PricedBlock, StepCost

#: Two GPUs of 100 W static power, 1,000 FLOP/s and 100 bytes/s.
ENGINE = EngineBuilt(4, "tiny", "toy", ranks=2, stages=1, kv_blocks=100, block_tokens=16, peak_flops=1000.0,
                     peak_bandwidth=100.0, static_watts=100.0, memory=1e9, weights=1e6)

GEMM = KernelCost.of("qkv", "gemm", 0.1, joules=5.0, flops=50.0, bytes=2.0, bound="compute", waves=1.5, idle=0.5,
                     shape="8x8", launch="128x128", source="sweep", roofline_ratio=2.5, low=0.08, high=0.12)
ATTENTION = KernelCost.of("attention", "attention", 0.15, joules=10.0, flops=4.0, bytes=6.0, bound="memory", waves=0.5,
                          idle=0.25, source="roofline", low=0.12, high=0.2, extrapolated=True)
LAPS = (PricedBlock.of((GEMM, 0), repeat=2),)


def _timeline(laps: tuple[PricedBlock, ...]) -> StepCost:
    """Half a second: two GEMMs and two attentions; 30 J, 108 FLOP and 16 bytes on each rank."""
    return StepCost.of(laps, [ATTENTION])


def overlapped() -> Log:
    """One step of two layers: half a product, the other with the sum of the first hidden beside it, and its own."""
    half = evolve(GEMM.replaced(seconds=0.2), sms=3)
    message = KernelCost.of("sum", "all_reduce", 0.1, joules=1.0, bound="communication", group="tensor", shape="8 B",
                            sms=1, launch="ring Simple", low=0.05, high=0.15)
    hidden = message.beside()
    timeline = StepCost.of([PricedBlock.of((half, hidden, half, message), repeat=2)])
    return Log([ENGINE], [Stepped(2.5, 4, 0, 1.0, 1.0, 1.0, 2.0, 2.5, Batch.of((6, 4)), 0, 1, 1, (timeline,))])


def sleepy() -> Log:
    """The same, where GPUs draw 40 W once they have had no work for a quarter of a second: before the first step from
    0.25 on, before the others for the second half of their gap, and at the end from 4.25 on."""
    return Log([evolve(ENGINE, sleep_watts=40.0, sleep_after=0.25, reach=0.1)], small().events)


def small() -> Log:
    """Request 7 gets three tokens, 8 gets one, 9 is rejected.

    The GPUs work from 1.5, 2.5 and 3.5 for half a second each; nothing is there to do before 1.0 and after 4.0.
    """
    first, second = Request(7, 1.0, 10, 3, session="chat"), Request(8, 2.125, 20, 1, priority=2)
    refused = Request(9, 2.5, 99, 5)
    events: list[Event] = [
        Arrived(1.0, first), Routed(1.0, 7, 4), Admitted(1.0, 7, 4, cached=4, known=10),
        Arrived(2.125, second), Routed(2.125, 8, 4),
        Stepped(2.25, 4, 0, 1.0, 1.5, 1.5, 2.0, 2.25, Batch.of((6, 4), prompts=[(7, 6, 4)]), 0, 1, 1,
                (_timeline(LAPS),)),
        Admitted(2.25, 8, 4, cached=0, known=20),
        Arrived(2.5, refused), Rejected(2.5, 9, "too long"),
        # Equal laps that are another object, as a second shape would have.
        Stepped(3.25, 4, 1, 2.25, 2.5, 2.5, 3.0, 3.25, Batch.of((1, 10), (20, 0), prompts=[(8, 20, 0)]), 1, 2, 3,
                (_timeline((PricedBlock.of((GEMM, 0), 2),)),)),
        Emitted(3.25, 8, 4, 1, 1), Finished(3.25, 8, 4),
        Stepped(4.5, 4, 2, 3.25, 3.5, 3.5, 4.0, 4.5, Batch.of((1, 11)), 0, 1, 2, (_timeline(LAPS),)),
        Emitted(4.5, 7, 4, 0, 2), Finished(4.5, 7, 4),
    ]
    return Log([ENGINE], events)
