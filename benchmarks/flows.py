"""Flows on links: max-min rates worked out anew, and what a start and an end cost beside others."""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import simpy
from attrs import evolve

from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.yardstick import beside
from ksim.foundation import process
from ksim.network.flows import Demand, Flows, fair_rates
from ksim.network.links import Links
from ksim.network.routes import Machines
from ksim.scenario.hardware import gpu_of, system_of
from ksim.specs.hardware import Leaf

#: A fat tree: hosts, those at a leaf switch, and how much less the switch sends to the spine than its hosts send.
HOSTS, AT_A_LEAF, OVERSUBSCRIPTION = 256, 16, 2.0
FLOWS = 10_000
ELSEWHERE = (0, 100, 1_000, 10_000)
SHARING = (0, 1, 7)
GOALS = {"rates": Goal(f"{FLOWS:,} flows among {HOSTS} hosts: rates", 1.0, "CPU s"),
         "starts": Goal(f"{FLOWS:,} flows among {HOSTS} hosts: all started at once", 1.0, "CPU s"),
         "ratio": Goal(f"a start and an end, beside {ELSEWHERE[-1]:,} flows elsewhere over beside none", 1.5, "times",
                       timed=False)}


def findings() -> Findings:
    """All flows at once on trees of hosts with one NIC and with eight, and one flow after the other beside others."""
    trees, yardstick = beside(lambda: {nics: _at_once(nics) for nics in (1, 8)})
    costs, second = beside(lambda: {sharing: [_start_and_end(count, sharing) for count in ELSEWHERE]
                                    for sharing in SHARING})
    at_once = Sheet(
        f"{FLOWS:,} flows between {HOSTS} hosts, {AT_A_LEAF} at a leaf switch with {OVERSUBSCRIPTION:g} times less to"
        f" the spine: CPU s, best of 3; {yardstick:.2f} us for an event of SimPy",
        ("NICs a host", "links", "rates", "all started"),
        [(str(nics), f"{figures['links']:,.0f}", f"{figures['rates']:.3f}", f"{figures['starts']:.3f}")
         for nics, figures in trees.items()])
    alone = Sheet(
        f"One start and one end, by flows elsewhere: us of CPU, best of 3; {second:.2f} us for an event of SimPy",
        ("flows that share its links", *(f"{count:,} elsewhere" for count in ELSEWHERE)),
        [(str(sharing), *(f"{cost:.1f}" for cost in row)) for sharing, row in costs.items()])
    worst = {key: max(figures[key] for figures in trees.values()) for key in ("rates", "starts")}
    worst["ratio"] = max(row[-1] / row[0] for row in costs.values())
    return Findings([at_once, alone], [goal.judged(worst[key], yardstick) for key, goal in GOALS.items()])


def tree(nics: int) -> Links:
    """The links of the hosts, each with so many GPUs and NICs."""
    system = evolve(system_of(None, "hgx-h100", HOSTS), gpus_per_node=nics, leaf=Leaf(AT_A_LEAF, OVERSUBSCRIPTION))
    return Links.of([Machines(system, gpu_of(system.gpu))])


def _at_once(nics: int) -> dict[str, float]:
    links, rng = tree(nics), np.random.default_rng(0)
    hosts = rng.integers(0, HOSTS, FLOWS)
    others = (hosts + rng.integers(1, HOSTS, FLOWS)) % HOSTS
    ends = (nics * np.stack((hosts, others)) + rng.integers(0, nics, (2, FLOWS))).T.tolist()
    paths = [links.path(f"gpu{source}", f"gpu{target}") for source, target in ends]
    demands, capacities = [Demand(path) for path in paths], links.capacities
    return {"links": float(len(capacities)), "rates": _best(partial(fair_rates, demands, capacities)),
            "starts": _best(partial(_start_all, links, paths))}


def _start_all(links: Links, paths: list[tuple[int, ...]]) -> None:
    """Start a flow over each path at one time, and work out the rates of all."""
    env = simpy.Environment()
    flows = Flows(env, links, lambda *_: None)
    for path in paths:
        flows.start(1e12, path)
    env.run(until=1e-9)


def _start_and_end(elsewhere: int, sharing: int, times: int = 500) -> float:
    """Microseconds for a flow's start and its end beside flows that go on, *sharing* of them on its way."""
    links = tree(8)
    env = simpy.Environment()
    flows = Flows(env, links, lambda *_: None)
    for place in range(elsewhere):
        gpu = 8 + place % (8 * AT_A_LEAF - 16)  # to the next host at the same leaf switch
        flows.start(1e18, links.path(f"gpu{gpu}", f"gpu{gpu + 8}"))
    path = links.path("gpu0", f"gpu{8 * HOSTS - 1}")
    for _ in range(sharing):
        flows.start(1e18, path)
    env.run(until=1e-9)

    def one_after_the_other() -> None:
        for _ in range(times):
            env.run(flows.start(1e6, path).done)

    return 1e6 * _best(one_after_the_other) / times


def _best(block: Callable[[], object]) -> float:
    """CPU seconds of *block*: the least of three."""
    found = []
    for _ in range(3):
        with process.paused():
            begin = time.process_time()
            block()
            found.append(time.process_time() - begin)
    return min(found)
