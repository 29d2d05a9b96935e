"""How many rows each expert of a mixture gets: expectations, for no router is simulated token by token."""

from collections import Counter
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

#: (rows, how many experts have so many); experts without rows are not listed.
Loads = tuple[tuple[int, int], ...]

#: The golden ratio's fraction, whose multiples spread over the unit interval evenly, however many there are.
GOLDEN = 0.6180339887


@lru_cache(maxsize=4096)
def loads(tokens: int, top_k: int, experts: int, skew: float = 0.0) -> Loads:
    """The rows of each expert when each of *tokens* draws *top_k* different ones.

    Experts are as popular as Zipf's law has it, all alike where its exponent *skew* is 0.  An expert's load is
    binomial, and each expert stands for another quantile of its own chance; the loads add up to tokens x top_k.
    """
    chances = _chances(top_k, experts, skew)
    quantiles = (np.argsort(np.argsort(np.arange(experts) * GOLDEN % 1)) + 0.5) / experts
    drawn = np.empty(experts, dtype=np.int64)
    for chance in np.unique(chances):
        alike = chances == chance
        drawn[alike] = _binomial(tokens, float(chance), quantiles[alike])
    spread = levelled(drawn, tokens * chances, tokens, tokens * top_k)
    return tuple(sorted(((rows, count) for rows, count in Counter(spread.tolist()).items() if rows), reverse=True))


def _chances(top_k: int, experts: int, skew: float) -> NDArray[np.float64]:
    """The chance of each expert to be among the *top_k* of a token, the most popular first; they add up to top_k."""
    if top_k >= experts or skew == 0:
        return np.full(experts, min(1.0, top_k / experts))
    popularity = np.arange(1, experts + 1.0) ** -skew
    popularity /= popularity.sum()
    low, high = 0.0, 64.0 * experts
    for _ in range(60):  # how often one would draw with replacement until top_k different ones are expected
        middle = (low + high) / 2
        low, high = (middle, high) if (1 - np.exp(-middle * popularity)).sum() < top_k else (low, middle)
    chances: NDArray[np.float64] = 1 - np.exp(-low * popularity)
    return chances


def _binomial(trials: int, chance: float, quantiles: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many of *trials* succeed, at *quantiles* of the distribution."""
    if chance >= 1:
        return np.full(len(quantiles), trials)
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
