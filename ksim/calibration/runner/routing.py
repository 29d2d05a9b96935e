"""Which experts the tokens of a measured mixture go to."""

import numpy as np

from ksim.calibration.measurements import Ints
from ksim.calibration.runner.device import Point


def chosen(point: Point) -> Ints:
    """For each of `t` tokens the `topk` different ones of `e` experts it goes to, the same at every call.

    Experts are popular by a Zipf law whose exponent is `skew`; 0 makes them equal.
    """
    rng = np.random.default_rng(0)
    experts = point["e"]
    popularity = -float(point.shape.get("skew", 0.0)) * np.log(np.arange(1, experts + 1))
    # The largest of logarithms of weights plus Gumbel noise are a sample without replacement.
    noise = rng.gumbel(size=(point["t"], experts)) + rng.permutation(popularity)
    return np.argpartition(-noise, point["topk"] - 1, axis=1)[:, :point["topk"]].astype(np.int64)


def loads(point: Point) -> Ints:
    """How many tokens each expert gets."""
    return np.bincount(chosen(point).ravel(), minlength=point["e"]).astype(np.int64)
