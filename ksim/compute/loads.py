"""How many rows each expert of a mixture gets: expectations, for no router is simulated token by token."""

from collections import Counter
from functools import lru_cache
from math import erf

import numpy as np
from numpy.typing import NDArray

from ksim.compute.sizes import Sizes
from ksim.specs.deployment import Shard

#: (rows, how many experts have so many); experts without rows are not listed.
Loads = tuple[tuple[int, int], ...]

#: The golden ratio's fraction, whose multiples spread over the unit interval evenly, however many there are.
GOLDEN = 0.6180339887


def fullest(sizes: Sizes, shard: Shard) -> Loads:
    """The loads of a step on the rank that has most rows, of those that share the experts."""
    ranks = shard.expert_groups
    shares = shard.routing.shares[0] if shard.routing.shares else ()
    return loads(sizes.of["T"], sizes.of["top_k"], sizes.of["E"], shard.routing.exponent, shares, ranks)


@lru_cache(maxsize=4096)
def loads(tokens: int, top_k: int, experts: int, skew: float = 0.0, shares: tuple[float, ...] = (),
          ranks: int = 1) -> Loads:
    """The rows of each expert when each of *tokens* draws *top_k* different ones.

    Experts are as popular as their *shares*, or as Zipf's law has it, all alike where its exponent *skew* is 0.  An
    expert's load is binomial, and each expert stands for another quantile of its own chance; the loads add up to
    tokens x top_k, or, of the fullest of several *ranks* among which experts are dealt out, to the most rows that one
    of these is expected to have.
    """
    chances = _chances(top_k, experts, skew, shares)
    rows = tokens * top_k
    if ranks > 1:
        chances, rows = _fullest(tokens, chances, ranks, shuffled=not shares)
    held = len(chances)
    quantiles = (np.argsort(np.argsort(np.arange(held) * GOLDEN % 1)) + 0.5) / held
    drawn = np.empty(held, dtype=np.int64)
    for chance in np.unique(chances):
        alike = chances == chance
        drawn[alike] = _binomial(tokens, float(chance), quantiles[alike])
    spread = levelled(drawn, tokens * chances, tokens, rows)
    return tuple(sorted(((rows, count) for rows, count in Counter(spread.tolist()).items() if rows), reverse=True))


def _fullest(tokens: int, chances: NDArray[np.float64], ranks: int,
             shuffled: bool) -> tuple[NDArray[np.float64], int]:
    """The chances of the experts on the rank that has most, when it does, and the rows that it is expected to have.

    As in vLLM, experts go to ranks in their order, one more to the first where they do not divide.  Loads of ranks are
    taken as normal and independent with the variance of their experts' binomials: among equal ranks, that experts of
    one token differ and that rows of all ranks add up takes from the spread what it adds to the differences.
    """
    if shuffled:  # popular ones lie anywhere
        chances = chances[np.argsort(np.arange(len(chances)) * GOLDEN % 1, kind="stable")]
    held = np.array_split(chances, ranks)
    mean = tokens * np.array([part.sum() for part in held])
    deviation = np.sqrt(tokens * np.array([(part * (1 - part)).sum() for part in held]))
    most = held[int(mean.argmax())]
    rows = int(min(round(_highest(mean, deviation)), tokens * np.count_nonzero(most), tokens * round(chances.sum())))
    return np.minimum(most * rows / max(mean.max(), 1e-9), 1.0), rows


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
