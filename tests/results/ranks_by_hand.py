"""The small log with ranks that wait for each other, and random ones."""

import numpy as np
from hypothesis import strategies as st

from ksim.flow.events import WAITS, ExpertsMoved, RanksMet, RankTimeline
from ksim.flow.log import Log

from . import by_hand

#: A scenario in which one GPU of four is 10 % slower.
SLOW = {"model": "llama-3.2-1b", "gpu": "h200", "detail": "rank",
        "serve": {"tensor_parallel_size": 4, "max_model_len": 4096},
        "workload": {"synthetic": {"count": 6, "arrivals": {"process": "poisson", "rate": 50.0},
                                   "prompt": {"kind": "uniform", "low": 50, "high": 400},
                                   "output": {"kind": "uniform", "low": 2, "high": 12}}},
        "ranks": {"slow": [{"gpu": 2, "speed": 0.9}]}}

#: A scenario in which some experts get more tokens than others, and EPLB moves them three times.
EPLB = {"model": "qwen3-30b-a3b", "gpu": "h200", "detail": "rank", "routing": {"name": "zipf", "exponent": 0.5},
        "serve": {"data_parallel_size": 4, "enable_expert_parallel": True, "max_model_len": 4096, "enable_eplb": True,
                  "num_redundant_experts": 4, "eplb_step_interval": 8, "eplb_window_size": 8},
        "workload": {"synthetic": {"count": 16, "arrivals": {"process": "burst"},
                                   "prompt": {"kind": "uniform", "low": 50, "high": 100},
                                   "output": {"kind": "uniform", "low": 20, "high": 20}}}}


def waits(ranks: int = 2, **by_cause):
    """Seconds of each rank by cause."""
    return np.array([by_cause.get(cause, [0.0] * ranks) for cause in WAITS], dtype=float)


def met(start, end, busy, timeline=None, engine=4, stage=0, gpus=(0, 1), **by_cause) -> RanksMet:
    return RanksMet(end, engine, stage, start, np.array(gpus), np.array(busy, dtype=float),
                    waits(len(busy), **by_cause), timeline)


#: Both begin at once; GPU 0 waits a tenth of a second for GPU 1, and the sum takes 50 ms.
TIMELINE = RankTimeline(("sum", ""), np.array([1.5, 1.5]), np.array([[1.8, 2.0], [1.9, 2.0]]),
                        np.array([[1.9, 2.0], [1.9, 2.0]]), np.array([[1.95, 2.0], [1.95, 2.0]]))


def small() -> Log:
    """`by_hand.small`, where GPU 1 is slow in the first step, the host of GPU 0 late by 100 ms in the second, and both
    are alike in the third."""
    log = by_hand.small()
    for event in (met(1.5, 2.0, (0.35, 0.45), TIMELINE, clock=[0.1, 0.0]),
                  met(2.5, 3.0, (0.35, 0.35), host=[0.0, 0.1]), met(3.5, 4.0, (0.45, 0.45))):
        log.add(event)
    return log


def moved() -> Log:
    """`small`, where EPLB moves experts of one stage twice and of another once."""
    log = small()
    for time, stage, start in ((2.25, 0, 2.0), (2.5, 1, 2.0), (3.5, 0, 3.0)):
        log.add(ExpertsMoved(time, 4, stage, start, experts=3, bytes=3000.0, before=1.5, after=1.125))
    return log


@st.composite
def stages(draw):
    """A log of steps of one or two stages, in which ranks wait, begin late and compute at random."""
    random, log = np.random.default_rng(draw(st.integers(0, 2**32))), Log([by_hand.ENGINE])
    for stage in range(draw(st.integers(1, 2))):
        ranks, now = draw(st.integers(1, 9)), 0.0
        gpus = 10 * stage + random.permutation(ranks)
        for _ in range(draw(st.integers(1, 6))):
            own, late = random.random((4, ranks)), random.random(ranks) * draw(st.integers(0, 1))
            late -= late.min()
            reached = own.sum(axis=0) + late
            last = reached.argmax()
            causes = np.zeros((len(WAITS), ranks))
            causes[:3] = own[1:, last, None] - own[1:]
            causes[0] += own[0, last] - own[0]
            causes[WAITS.index("host")] = late[last] - late
            together, begin = random.random(), now + random.random()
            now = begin + reached.max() + together
            log.add(RanksMet(now, 0, stage, begin, gpus, own.sum(axis=0), causes))
    return log
