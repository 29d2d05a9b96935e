"""The rows (token-expert pairs) that each expert gets, in expectation, and the experts that each rank holds.

No router is simulated token by token; `expert_draws` draws what one may do in a step.

Without EPLB, experts go to ranks in their order or in turns, one more to the first ranks where they do not divide
(vLLM, model_executor/layers/fused_moe/layer.py, `determine_expert_map`).  EPLB knows their loads: it copies the experts
whose copies have most, and packs the heaviest first onto the lightest rank that has room (github.com/deepseek-ai/EPLB,
its global way, which is what vLLM's distributed/eplb does where nodes and groups of experts are left out).
"""

from collections import Counter
from functools import lru_cache
from math import ceil, erf

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.compute.sizes import MeanExpertRows
from ksim.specs.shard import Placement, Routing

__all__ = ["Held", "Numbers", "chances_of", "copies", "fullness", "placed", "ExpertRows", "GOLDEN", "Mixture",
           "expert_rows", "average_rank", "fullest_rank", "levelled"]


Numbers = NDArray[np.float64]
#: The experts in the slots of each rank, by their numbers.
Held = list[NDArray[np.int64]]


def placed(load: Numbers, ranks: int, placement: Placement) -> Held:
    """Deal out experts of known *load* among *ranks*; raises ConfigError where EPLB's slots do not divide."""
    if placement.strategy == "balanced":
        return _balanced(load, ranks, placement)
    experts = np.arange(len(load))
    if placement.strategy == "round_robin":
        return [experts[rank::ranks] for rank in range(ranks)]
    return np.array_split(experts, ranks)


def copies(held: Held) -> NDArray[np.int64]:
    """The number of copies of each expert, among which its tokens divide evenly."""
    return np.bincount(np.concatenate(held))


def fullness(load: Numbers, held: Held) -> Numbers:
    """The load of each rank."""
    load_of_copy = load / copies(held)
    return np.array([load_of_copy[experts].sum() for experts in held])


def _balanced(load: Numbers, ranks: int, placement: Placement) -> Held:
    """Pack, but leave experts in their order, beside idle copies, if that is more even.

    EPLB does not look back; packing loses only to few experts of very different loads that happen to lie well.
    """
    room = placement.slots(len(load), ranks)
    packed, kept = _packed(load, _copied(load, placement.redundant), room), _kept(len(load), ranks, room)
    return min(packed, kept, key=lambda held: float(fullness(load, held).max()))


def _copied(load: Numbers, redundant: int) -> NDArray[np.int64]:
    """The expert in each slot: every one, and *redundant* copies, each of the one whose copies have most then."""
    counts = np.ones(len(load), dtype=np.int64)
    for _ in range(redundant):
        counts[np.argmax(load / counts)] += 1
    return np.repeat(np.arange(len(load)), counts)


def _packed(load: Numbers, slots: NDArray[np.int64], room: int) -> Held:
    """Put *room* of *slots* on each rank, the heaviest first onto the lightest that has room."""
    slot_load = (load / np.bincount(slots))[slots]
    held: list[list[int]] = [[] for _ in range(len(slots) // room)]
    weight = np.zeros(len(held))
    for slot in np.argsort(-slot_load, kind="stable"):
        lightest = int(weight.argmin())
        held[lightest].append(int(slots[slot]))
        weight[lightest] += slot_load[slot] if len(held[lightest]) < room else np.inf
    return [np.array(experts) for experts in held]


def _kept(experts: int, ranks: int, room: int) -> Held:
    """Experts in their order, and in the slots beyond them copies of the rank's own."""
    return [np.resize(held if len(held) else [rank % experts], room)
            for rank, held in enumerate(np.array_split(np.arange(experts), ranks))]


#: (rows, number of experts that have so many), without the experts that have none.
ExpertRows = tuple[tuple[int, int], ...]

#: Multiples of the golden ratio's fraction spread evenly over the unit interval, however many there are.
GOLDEN = 0.6180339887


@frozen(cache_hash=True)
class Mixture:
    """Experts that `ranks` share; each token goes to `top_k` of them."""

    top_k: int
    experts: int
    routing: Routing = Routing()
    ranks: int = 1
    placement: Placement = Placement()


@lru_cache(maxsize=4096)
def expert_rows(tokens: int, top_k: int, experts: int, skew: float = 0.0, shares: tuple[float, ...] = ()) -> ExpertRows:
    """The rows of each expert when each of *tokens* is routed to *top_k* different ones.

    Popularity follows *shares*, or Zipf's law with the exponent *skew* (0: all alike).  The rows of an expert are
    binomial; each expert takes another quantile of its distribution, and the rows add up to tokens x top_k.
    """
    return _drawn(tokens, chances_of(top_k, experts, skew, shares), tokens * top_k)


@lru_cache(maxsize=4096)
def average_rank(tokens: int, mixture: Mixture) -> MeanExpertRows:
    """The rows of an average rank's experts: those of all experts, divided by the number of ranks."""
    return tuple((rows, count / mixture.ranks) for rows, count in _of_all(tokens, mixture))


@lru_cache(maxsize=4096)
def fullest_rank(tokens: int, mixture: Mixture) -> ExpertRows:
    """The rows of the experts on the fullest rank: as many in all as the fullest is expected to have.

    Rows of ranks are taken as independent normal numbers with the variance of their experts' binomials.  Two
    corrections are left out, because they cancel among equal ranks: a token's experts differ, and the rows of all ranks
    have a fixed sum.
    """
    if mixture.ranks == 1:
        return _of_all(tokens, mixture)
    chance_of_copy, held = _slots(mixture)
    chances = [chance_of_copy[experts] for experts in held]
    mean = tokens * np.array([part.sum() for part in chances])
    deviation = np.sqrt(tokens * np.array([(part * (1 - part)).sum() for part in chances]))
    most = chances[int(mean.argmax())]
    pairs = tokens * mixture.top_k
    expected = max(round(_highest(mean, deviation)), ceil(pairs / mixture.ranks))
    rows = min(expected, tokens * int(np.count_nonzero(most)), pairs)
    return _drawn(tokens, np.minimum(most * rows / max(mean.max(), 1e-9), 1.0), rows)


def _of_all(tokens: int, mixture: Mixture) -> ExpertRows:
    """The rows of all experts; each copy of an expert counts by itself."""
    chance_of_copy, held = _slots(mixture)
    return _drawn(tokens, chance_of_copy[np.sort(np.concatenate(held))], tokens * mixture.top_k)


@lru_cache(maxsize=256)
def _slots(mixture: Mixture) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
    """The chance of a token to be sent to one copy of each expert, and the experts of each rank; EPLB knows both."""
    routing = mixture.routing
    shares = routing.shares[0] if routing.shares else ()
    chances = chances_of(mixture.top_k, mixture.experts, routing.exponent, shares)
    order = np.arange(len(chances))
    if not shares:  # popular ones lie anywhere
        order = np.argsort(order * GOLDEN % 1, kind="stable")
    held = [order[places] for places in placed(chances[order], mixture.ranks, mixture.placement)]
    return chances / copies(held), held


def _drawn(tokens: int, chances: NDArray[np.float64], rows: int) -> ExpertRows:
    """The rows of experts that each of *tokens* goes to with these *chances*; *rows* in all."""
    held = len(chances)
    quantiles = (np.argsort(np.argsort(np.arange(held) * GOLDEN % 1)) + 0.5) / held
    drawn = np.empty(held, dtype=np.int64)
    for chance in np.unique(chances):
        alike = chances == chance
        drawn[alike] = _binomial(tokens, float(chance), quantiles[alike])
    spread = levelled(drawn, tokens * chances, tokens, rows)
    return tuple(sorted(((rows, count) for rows, count in Counter(spread.tolist()).items() if rows), reverse=True))


def _highest(mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> float:
    """The expected maximum of independent normal numbers."""
    low, high = float(mean.max()), float((mean + 6 * deviation).max())
    below = float((mean - 6 * deviation).max())
    places = np.linspace(below, high, 97)
    scaled = (places - mean[:, None]) / np.maximum(deviation, 1e-9)[:, None] / 2**0.5
    all_below = np.prod(0.5 + 0.5 * np.vectorize(erf)(scaled), axis=0)
    step = (high - below) / (len(places) - 1)
    return max(low, high - step * float((all_below[1:] + all_below[:-1]).sum()) / 2)


def chances_of(top_k: int, experts: int, skew: float, shares: tuple[float, ...]) -> NDArray[np.float64]:
    """The chance of each expert to be among the *top_k* of a token, the most popular first; they add up to top_k."""
    if top_k >= experts or not (skew or shares):
        return np.full(experts, min(1.0, top_k / experts))
    popularity = np.array(shares) if shares else np.arange(1, experts + 1.0) ** -skew
    if np.count_nonzero(popularity) <= top_k:
        return np.asarray((popularity > 0) * min(1.0, top_k / np.count_nonzero(popularity)), dtype=np.float64)
    popularity /= popularity.sum()
    if shares and popularity.max() * top_k <= 1:
        return np.asarray(popularity * top_k)  # measured shares of pairs are chances already
    low, high = 0.0, 64.0 * experts
    for _ in range(60):  # how often one would draw with replacement until top_k different ones are expected
        middle = (low + high) / 2
        low, high = (middle, high) if (1 - np.exp(-middle * popularity)).sum() < top_k else (low, middle)
    chances: NDArray[np.float64] = 1 - np.exp(-low * popularity)
    return chances


def _binomial(trials: int, chance: float, quantiles: NDArray[np.float64]) -> NDArray[np.int64]:
    """The number of successes in *trials*, at *quantiles* of its distribution."""
    if chance <= 0 or chance >= 1:
        return np.full(len(quantiles), trials if chance > 0 else 0)
    width = 8 * (trials * chance * (1 - chance)) ** 0.5 + 8
    first = int(max(0, trials * chance - width))
    count = np.arange(first, int(min(trials, trials * chance + width)) + 1)
    # Logarithms of successive ratios, for the coefficients themselves overflow.
    ratios = np.log((trials - count[:-1]) / count[1:]) + np.log(chance / (1 - chance))
    mass = np.concatenate([[0.0], np.cumsum(ratios)])
    share = np.cumsum(np.exp(mass - mass.max()))
    places = np.minimum(np.searchsorted(share / share[-1], quantiles), len(count) - 1)
    successes: NDArray[np.int64] = count[places]
    return successes


def levelled(drawn: NDArray[np.int64], mean: NDArray[np.float64], most: int, rows: int) -> NDArray[np.int64]:
    """Add or remove single rows, first where experts are furthest from their *mean*, until there are *rows* in all."""
    drawn = drawn.copy()
    while short := rows - int(drawn.sum()):
        sign = 1 if short > 0 else -1
        room = drawn < most if short > 0 else drawn > 0
        order = np.argsort((drawn - mean) * sign, kind="stable")
        drawn[order[room[order]][: abs(short)]] += sign
    return drawn
