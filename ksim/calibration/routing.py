"""How AIConfigurator's collectors spread tokens over experts: the loads behind the public tables of expert layers."""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from ksim.compute.expert_rows import levelled

Rows = NDArray[np.int64]


def balanced(tokens: int, top_k: int, experts: int, ranks: int) -> Rows:
    """Rows of the first rank's experts where they are assigned evenly: in strides over all experts."""
    stride = ceil(experts / top_k)
    token, choice = np.arange(tokens)[:, None], np.arange(top_k)[None]
    first = token if tokens >= stride else token * stride // tokens
    return np.bincount(((first + choice * stride) % experts).ravel(), minlength=experts)[: experts // ranks]


def power_law(tokens: int, top_k: int, experts: int, ranks: int, exponent: float, seed: int) -> Rows:
    """Rows of the fullest rank's experts where loads are drawn from a bounded power law."""
    rows = tokens * top_k
    lowest, highest = (1.0, 0.8 * tokens) if rows > experts else (0.01, 2.0)
    power = 1 - exponent
    uniform = np.random.default_rng(seed).random(experts)
    drawn = ((highest**power - lowest**power) * uniform + lowest**power) ** (1 / power)
    mean = drawn / drawn.sum() * rows
    spread = levelled(np.minimum(np.round(mean), tokens).astype(np.int64), mean, tokens, rows)
    by_rank = spread.reshape(ranks, -1)
    fullest: Rows = by_rank[by_rank.sum(axis=1).argmax()]
    return fullest
