"""Fit small models to log efficiencies: one function a kind, each from inputs, targets and weights."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from attrs import field, frozen

from ksim.cost.efficiency.models import (
    BoundedHead,
    Constant,
    Interpolation,
    Linear,
    Mean,
    Model,
    Network,
    Trees,
    covariance,
)
from ksim.cost.efficiency.physics import Array
from ksim.foundation.errors import ConfigError

#: Least absolute errors are found by weighted least squares, the weights taken anew so often.
ROUNDS = 30
#: Residuals below this, in log time, weigh no more than this.
SMALL = 0.01


@frozen
class Recipe:
    """A kind of model and what it is fitted with, such as ``Recipe("network", {"hidden": 24})``."""

    kind: str
    options: Mapping[str, Any] = field(factory=dict)

    def fit(self, inputs: Array, targets: Array, weights: Array | None = None) -> Model:
        """Fit to *targets* (rows,) at *inputs* (rows, inputs); raises ConfigError where a library is missing."""
        weights = np.ones(len(targets)) if weights is None else weights / weights.mean()
        return KINDS[self.kind](inputs, targets, weights, **self.options)


def constant(inputs: Array, targets: Array, weights: Array) -> Constant:
    """The weighted median."""
    order = np.argsort(targets)
    share = np.cumsum(weights[order])
    return Constant(targets[order][np.searchsorted(share, share[-1] / 2)])


def linear(inputs: Array, targets: Array, weights: Array, ridge: float = 1e-3) -> Linear:
    """Least absolute errors, slopes drawn to zero by *ridge*, outputs held in the range of the targets."""
    mean, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-9)
    rows = np.column_stack([(inputs - mean) / scale, np.ones(len(inputs))])
    penalty = ridge * weights.sum() * np.diag([1.0] * inputs.shape[1] + [0.0])
    solution, robust = np.zeros(rows.shape[1]), weights
    for _ in range(ROUNDS):
        solution = np.linalg.solve((rows.T * robust) @ rows + penalty, (rows.T * robust) @ targets)
        robust = weights / np.maximum(np.abs(targets - rows @ solution), SMALL) * SMALL
    slopes = solution[:-1] / scale
    return Linear(solution[-1] - mean @ slopes, slopes, targets.min(), targets.max())


def bounded_head(inputs: Array, targets: Array, weights: Array, waves: int = 0, floor: float = 0.01) -> BoundedHead:
    """``util = g - a / waves``: least squares in log time from a start at the median utilisation."""
    optimize = _library("scipy.optimize")
    count = inputs.shape[1] + 1

    def head(flat: Array) -> BoundedHead:
        return BoundedHead(flat[:count], flat[count:], float(waves), floor)

    def missed(flat: Array) -> Array:
        left: Array = np.concatenate([(head(flat)(inputs) - targets) * np.sqrt(weights), 1e-2 * flat])
        return left

    share = min(0.99, float(np.exp(-np.median(targets))))
    start = np.zeros(2 * count)
    start[count - 1], start[-1] = np.log(share / (1 - share)), -3.0
    return head(optimize.least_squares(missed, start, loss="soft_l1", f_scale=0.1, max_nfev=200).x)


def trees(inputs: Array, targets: Array, weights: Array, count: int = 60, leaves: int = 12, rate: float = 0.12,
          fewest: int = 20) -> Trees:
    """Gradient-boosted trees for the least absolute error."""
    ensemble = _library("sklearn.ensemble")
    forest = ensemble.GradientBoostingRegressor(
        loss="huber", n_estimators=count, max_leaf_nodes=leaves, max_depth=None, learning_rate=rate,
        min_samples_leaf=fewest, subsample=0.5, random_state=0).fit(inputs, targets, weights)
    base = float(forest.init_.predict(inputs[:1])[0])
    return _flat([tree.tree_ for tree in forest.estimators_[:, 0]], base, rate)


def _flat(grown: list[Any], base: float, rate: float) -> Trees:
    """scikit-learn's trees as rows of nodes."""
    roots = np.cumsum([0, *(tree.node_count for tree in grown)])[:-1]
    parts: dict[str, list[Array]] = {name: [] for name in ("columns", "thresholds", "lefts", "rights", "values")}
    for tree, root in zip(grown, roots, strict=True):
        leaf, itself = tree.children_left < 0, np.arange(tree.node_count)
        parts["columns"].append(np.where(leaf, 0, tree.feature))
        parts["thresholds"].append(np.where(leaf, 0.0, tree.threshold))
        parts["lefts"].append(root + np.where(leaf, itself, tree.children_left))
        parts["rights"].append(root + np.where(leaf, itself, tree.children_right))
        parts["values"].append(rate * tree.value[:, 0, 0])
    depth = max(tree.max_depth for tree in grown)
    return Trees(base=base, roots=roots, depth=depth, **{name: np.concatenate(part) for name, part in parts.items()})


def network(inputs: Array, targets: Array, weights: Array, hidden: int = 24, members: int = 4, decay: float = 1e-3,
            rounds: int = 60, reach: float = 3.0, seed: int = 0) -> Network:
    """Perceptrons that differ in where they started; rows are drawn by weight, for the library knows none."""
    perceptrons = _library("sklearn.neural_network")
    mean, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-9)
    rows = np.clip((inputs - mean) / scale, -reach, reach)
    grown = []
    for member in range(members):
        drawn = np.random.default_rng([seed, member]).choice(len(rows), len(rows), p=weights / weights.sum())
        perceptron = perceptrons.MLPRegressor(
            hidden_layer_sizes=(hidden, hidden), activation="tanh", alpha=decay, max_iter=rounds, tol=0.0,
            batch_size=min(256, len(rows)), learning_rate_init=3e-3, random_state=seed + member)
        with warnings.catch_warnings():  # a budget of rounds is meant to be used up
            warnings.simplefilter("ignore")
            grown.append(perceptron.fit(rows[drawn], targets[drawn]))
    layers = [np.stack([np.vstack([one.coefs_[i], one.intercepts_[i]]) for one in grown]) for i in range(3)]
    return Network(mean, scale, reach, layers[0], layers[1], layers[2][:, :, 0])


def interpolation(inputs: Array, targets: Array, weights: Array, base: Recipe = Recipe("constant"),
                  noise: float = 0.02, lengths: float | tuple[float, ...] = 0.0) -> Interpolation:
    """A Gaussian process between the rows, on what *base* leaves; *lengths* 0 are found by leaving rows out."""
    started = base.fit(inputs, targets, weights)
    left = targets - started(inputs)
    found = np.asarray(lengths, dtype=float) if lengths else _lengths(inputs, left, noise)
    along = np.broadcast_to(found, inputs.shape[1])
    points = inputs / along
    return Interpolation(started, along, points, _inverse(points, left, noise)[0] @ left)


def _inverse(points: Array, left: Array, noise: float) -> tuple[Array, Array]:
    """The inverse covariance of the points, and what leaving each of them out would miss."""
    variance = max(float(np.var(left)), 1e-12)
    inverse = np.asarray(np.linalg.inv(covariance(points, points) + noise**2 / variance * np.eye(len(points))))
    return inverse, inverse @ left / np.diag(inverse)


def _lengths(inputs: Array, left: Array, noise: float) -> Array:
    """Kernel lengths along each input that miss least when each row is left out, on a sample of the rows."""
    optimize = _library("scipy.optimize")
    sample = np.random.default_rng(0).permutation(len(inputs))[:600]
    spread = np.maximum(inputs.std(axis=0), 1e-9)

    def missed(logs: Array) -> float:
        return float(np.abs(_inverse(inputs[sample] / np.exp(logs), left[sample], noise)[1]).mean())

    found = optimize.minimize(missed, np.log(2.0 * spread), method="Powell",
                              bounds=[(np.log(0.1 * s), np.log(100.0 * s)) for s in spread],
                              options={"maxfev": 40 * inputs.shape[1], "xtol": 0.05, "ftol": 1e-3})
    return np.asarray(np.exp(found.x))


def mean(inputs: Array, targets: Array, weights: Array, one: Recipe, other: Recipe) -> Mean:
    return Mean(one.fit(inputs, targets, weights), other.fit(inputs, targets, weights))


KINDS: Mapping[str, Callable[..., Model]] = {
    "constant": constant, "linear": linear, "bounded_head": bounded_head, "trees": trees, "network": network,
    "interpolation": interpolation, "mean": mean,
}


def _library(name: str) -> Any:
    """Import what only fitting needs; raises ConfigError that says how to install it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(name, "is needed to fit models; install it with `pip install 'ksim[fit]'`") from None
