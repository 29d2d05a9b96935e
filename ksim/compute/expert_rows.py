"""How many rows each expert of a mixture gets: expectations, for no router is simulated token by token."""

from collections import Counter
from functools import lru_cache
from math import ceil, erf

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.compute.placement import copies, placed
from ksim.specs.experts import Placement, Routing

#: (rows, how many experts have so many); experts without rows are not listed.
ExpertRows = tuple[tuple[int, int], ...]
#: The same of an average rank, which has fractions of experts.
MeanExpertRows = tuple[tuple[int, float], ...]

#: The golden ratio's fraction, whose multiples spread over the unit interval evenly, however many there are.
GOLDEN = 0.6180339887


@frozen(cache_hash=True)
class Mixture:
    """Experts of which a token goes to `top_k`, dealt out among `ranks`."""

    top_k: int
    experts: int
    routing: Routing = Routing()
    ranks: int = 1
    placement: Placement = Placement()


@lru_cache(maxsize=4096)
def expert_rows(tokens: int, top_k: int, experts: int, skew: float = 0.0, shares: tuple[float, ...] = ()) -> ExpertRows:
    """The rows of each expert when each of *tokens* draws *top_k* different ones.

    Experts are as popular as their *shares*, or as Zipf's law has it, all alike where its exponent *skew* is 0.  An
    expert's load is binomial, and each expert stands for another quantile of its own chance; the loads add up to
    tokens x top_k.
    """
    return _drawn(tokens, _chances(top_k, experts, skew, shares), tokens * top_k)


@lru_cache(maxsize=4096)
def average_rank(tokens: int, mixture: Mixture) -> MeanExpertRows:
    """The loads of an average rank: those of all, over how many ranks there are."""
    return tuple((rows, count / mixture.ranks) for rows, count in _of_all(tokens, mixture))


@lru_cache(maxsize=4096)
def fullest_rank(tokens: int, mixture: Mixture) -> ExpertRows:
    """The loads of the rank that has most rows, as many as the fullest of *mixture*'s ranks is expected to have.

    ExpertRows of ranks are taken as normal and independent with the variance of their experts' binomials: among equal
    ranks, that experts of one token differ and that rows of all ranks add up takes from the spread what it adds to the
    differences.
    """
    if mixture.ranks == 1:
        return _of_all(tokens, mixture)
    each, held = _slots(mixture)
    chances = [each[experts] for experts in held]
    mean = tokens * np.array([part.sum() for part in chances])
    deviation = np.sqrt(tokens * np.array([(part * (1 - part)).sum() for part in chances]))
    most = chances[int(mean.argmax())]
    pairs = tokens * mixture.top_k
    expected = max(round(_highest(mean, deviation)), ceil(pairs / mixture.ranks))
    rows = min(expected, tokens * int(np.count_nonzero(most)), pairs)
    return _drawn(tokens, np.minimum(most * rows / max(mean.max(), 1e-9), 1.0), rows)


def _of_all(tokens: int, mixture: Mixture) -> ExpertRows:
    """The loads of all experts, copies for themselves."""
    each, held = _slots(mixture)
    return _drawn(tokens, each[np.sort(np.concatenate(held))], tokens * mixture.top_k)


@lru_cache(maxsize=256)
def _slots(mixture: Mixture) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
    """The chance of a token to come to one copy of each expert, and the experts that each rank holds.

    EPLB is taken to know these chances.
    """
    routing = mixture.routing
    shares = routing.shares[0] if routing.shares else ()
    chances = _chances(mixture.top_k, mixture.experts, routing.exponent, shares)
    order = np.arange(len(chances))
    if not shares:  # popular ones lie anywhere
        order = np.argsort(order * GOLDEN % 1, kind="stable")
    held = [order[places] for places in placed(chances[order], mixture.ranks, mixture.placement)]
    return chances / copies(held), held


def _drawn(tokens: int, chances: NDArray[np.float64], rows: int) -> ExpertRows:
    """ExpertRows of experts with these *chances* of each of *tokens*, *rows* in all."""
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
    all_below = np.prod(0.5 + 0.5 * _erf(scaled), axis=0)
    step = (high - below) / (len(places) - 1)
    return max(low, high - step * float((all_below[1:] + all_below[:-1]).sum()) / 2)


def _erf(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([erf(number) for number in numbers.ravel()]).reshape(numbers.shape)


def _chances(top_k: int, experts: int, skew: float, shares: tuple[float, ...]) -> NDArray[np.float64]:
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
    """How many of *trials* succeed, at *quantiles* of the distribution."""
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
    """Add or take single rows, first where loads are furthest from their *mean*, until there are *rows* of them."""
    drawn = drawn.copy()
    while short := rows - int(drawn.sum()):
        sign = 1 if short > 0 else -1
        room = drawn < most if short > 0 else drawn > 0
        order = np.argsort((drawn - mean) * sign, kind="stable")
        drawn[order[room[order]][: abs(short)]] += sign
    return drawn
