"""The rounds of the estimates: all candidates first, then with caches of their real size, then the best with drafters.

The first round takes all prefixes to be found.  It says how many replicas each family needs, and so how many caches
there are, between which a router spreads what could be found.
"""

from collections.abc import Iterator, Sequence

from ksim.scenario.scenario import Scenario
from ksim.study.grid import SettingValues
from ksim.study.planning.candidates import CACHE, ROUTER, Candidates, EngineFamily, drafting, routed, values_of
from ksim.study.planning.estimate import cache_tokens
from ksim.study.planning.options import options
from ksim.study.planning.ranking import Option, PlanQuestion
from ksim.study.planning.requests import SPREADING, SampledRequests
from ksim.study.planning.step_prices import LoadSample

#: The router that is tried where requests share prefixes, and how many families of the best options get a drafter:
#: their steps are the dearest to price.
_ROUTER, _DRAFTING = "prefix_aware", 3

#: A family, and the load of its engines.
Loaded = tuple[EngineFamily, LoadSample]


def rounds(scenario: Scenario, over: Sequence[SettingValues], question: PlanQuestion, requests: SampledRequests,
           found: Candidates, objectives: Sequence[str]) -> tuple[list[Option], int]:
    """The options of the candidates *found*, the best by *objectives* first, and how many were looked at in all."""
    ranked, count = _ranked(question, [(family, requests.whole) for family in found.families], objectives), found.count
    if requests.shared:
        cached = [*_cached(scenario, over, requests, ranked)]
        count += Candidates(tuple(family for family, _ in cached if ROUTER in family.shared), {}).count
        ranked = _ranked(question, cached, objectives)
    drafted = [*_drafted(scenario, over, ranked)]
    if drafted:
        count += Candidates(tuple(family for family, _ in drafted), {}).count
        ranked = sorted([*ranked, *_ranked(question, drafted, objectives)], key=lambda one: one.order(objectives))
    return ranked, count


def _ranked(question: PlanQuestion, loaded: Sequence[Loaded], objectives: Sequence[str]) -> list[Option]:
    loads = {id(family): load for family, load in loaded}
    made = options(question, [family for family, _ in loaded], loads)
    return sorted(made, key=lambda one: one.order(objectives))


def _cached(scenario: Scenario, over: Sequence[SettingValues], requests: SampledRequests, ranked: Sequence[Option]
            ) -> Iterator[Loaded]:
    """The families of *ranked* options with what their caches hold; also behind a router that looks at prefixes, where
    there are several caches and nobody named another one."""
    open_ = scenario.router.name == "round_robin" and scenario.pair_router is None and ROUTER not in values_of(over)
    together = scenario.router.name not in SPREADING
    for family, replicas in _fewest(ranked).values():
        first = family.variants[0]
        tokens, caches = cache_tokens(first), replicas * first.serve.data_parallel_size
        yield family, requests.load(tokens, caches, together)
        if open_ and caches > 1:
            yield routed(family, _ROUTER), requests.load(tokens, caches, True)


def _fewest(ranked: Sequence[Option]) -> dict[int, tuple[EngineFamily, int]]:
    """By `id`, each family of *ranked* options, and its fewest replicas: those that serve requests alone, or prefill.
    """
    found = dict[int, tuple[EngineFamily, int]]()
    for alone in (True, False):
        counted = dict[int, tuple[EngineFamily, int]]()
        for option in ranked:
            for family, count in option.engines if alone == (len(option.families) == 1) else ():
                counted[id(family)] = family, min(count, counted.get(id(family), (family, count))[1])
        found = {**counted, **found}
    return found


def _drafted(scenario: Scenario, over: Sequence[SettingValues], ranked: Sequence[Option]) -> Iterator[Loaded]:
    """The families of the best *ranked* options with a drafter; of those that differ by the format of KV, the best."""
    best = dict[str, Loaded]()
    for family, load in (pair for option in ranked for pair in zip(option.families, option.loads, strict=True)):
        if len(best) < _DRAFTING:
            best.setdefault(repr({key: value for key, value in family.shared.items() if key != CACHE}), (family, load))
    loads = {id(family): load for family, load in best.values()}
    for family, made in drafting(scenario, [family for family, _ in best.values()], over):
        yield made, loads[id(family)]
