"""TODO"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from ksim.calibration.dataset import Lesson, Worked
from ksim.foundation.errors import ConfigError
from ksim.oracles.efficiency.families import Constants, Family
from ksim.oracles.efficiency.models import (
    BoundedHead,
    Constant,
    Interpolation,
    Linear,
    Mean,
    Model,
    Network,
    Trees,
    column_side,
    kernel_of,
    row_side,
)
from ksim.oracles.efficiency.physics import Array

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


def nothing(inputs: Array, targets: Array, weights: Array) -> Constant:
    """What physics says stands."""
    return Constant(0.0)


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
    optimize = library("scipy.optimize")
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
    ensemble = library("sklearn.ensemble")
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
    perceptrons = library("sklearn.neural_network")
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
                  most: int = 500) -> Interpolation:
    """A Gaussian process between the rows, on what *base* leaves; lengths and noise are likeliest for *most* rows."""
    started = base.fit(inputs, targets, weights)
    left = targets - started(inputs)
    lengths, noise = _likeliest(inputs, left, most)
    model = Interpolation(started, 1.0, [1.0], lengths[None], inputs, left)
    return evolve(model, weights=np.linalg.solve(_between(model) + noise * np.eye(len(left)), left))


def layered_interpolation(inputs: Array, targets: Array, weights: Array, amplitudes: Sequence[float],
                          lengths: Sequence[Sequence[float]], slopes: Sequence[float], noise: float,
                          cut: float = 3.0) -> Interpolation:
    """A Gaussian process with exponential kernels, all of it given but the values: for what jumps from row to row.

    It stands on ``inputs @ slopes``.  Rows further than *cut* robust deviations from what the others say of them are
    pulled in to there, three times over.
    """
    trend = inputs @ np.asarray(slopes)
    middle = constant(inputs, targets - trend, weights).value
    started = Linear(middle, slopes, -np.inf, np.inf)
    left = targets - started(inputs)
    model = Interpolation(started, 0.0, amplitudes, lengths, inputs, left)
    inverse = np.linalg.inv(_between(model) + noise * np.eye(len(inputs)))
    for _ in range(3):
        missed = inverse @ left / np.diag(inverse)  # by each row, were it left out
        most = cut * 1.4826 * float(np.median(np.abs(missed)))
        left = left - np.sign(missed) * np.maximum(np.abs(missed) - most, 0.0)
    return evolve(model, weights=inverse @ left)


def _between(model: Interpolation) -> Array:
    """The covariance of the model's points."""
    total = np.zeros((len(model.points), len(model.points)))
    for amplitude, lengths in zip(model.amplitudes, model.lengths, strict=True):
        points = model.points[:, np.isfinite(lengths)] / lengths[np.isfinite(lengths)]
        total += amplitude * kernel_of(row_side(points) @ column_side(points), float(model.smooth))
    return total


def _likeliest(inputs: Array, left: Array, most: int) -> tuple[Array, float]:
    """The kernel's length along each input, and the share of noise in the variance, by marginal likelihood."""
    processes = library("sklearn.gaussian_process")
    kernels = library("sklearn.gaussian_process.kernels")
    scale = np.maximum(inputs.std(axis=0), 1e-9)
    sample = np.random.default_rng(0).permutation(len(inputs))[:most]
    kernel = (kernels.ConstantKernel(1.0, (1e-3, 1e3)) * kernels.Matern(np.full(inputs.shape[1], 1.5), (0.2, 20.0), 1.5)
              + kernels.WhiteKernel(0.1, (1e-4, 1e1)))
    process = processes.GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    with warnings.catch_warnings():  # a length at its bound is one along which nothing happens
        warnings.simplefilter("ignore")
        process.fit(inputs[sample] / scale, left[sample])
    found = process.kernel_
    # The library's kernel has the square root of 3 beside the distance.
    return scale * found.k1.k2.length_scale / 3**0.5, float(found.k2.noise_level / found.k1.k1.constant_value)


def mean(inputs: Array, targets: Array, weights: Array, one: Recipe, other: Recipe) -> Mean:
    return Mean(one.fit(inputs, targets, weights), other.fit(inputs, targets, weights))


KINDS: Mapping[str, Callable[..., Model]] = {
    "nothing": nothing, "constant": constant, "linear": linear, "bounded_head": bounded_head, "trees": trees,
    "network": network, "interpolation": interpolation, "layered_interpolation": layered_interpolation, "mean": mean,
}


NOTHING = Recipe("nothing")


def library(name: str) -> Any:
    """Import what only fitting needs; raises ConfigError that says how to install it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(name, "is needed to fit models; install it with `pip install 'ksim[fit]'`") from None


#: Errors of log time below this count as their square and not as themselves.
SOFT = 0.02
#: What it costs, in log error, to be off a first guess by a factor of e: holds constants that the data is silent about.
PENALTY = 2e-4
ROUNDS = 250


@frozen
class Free:
    """A constant to fit: its bounds, and a first guess made from data sheets and round numbers."""

    lowest: float
    guess: float
    highest: float


def fit_constants(family: Family, lessons: Sequence[Lesson], free: Mapping[str, Free],
                  held: Constants | None = None) -> dict[str, float]:
    """Least absolute error of log time over *lessons*, whose weight `shares` says; *held* are what is not free."""
    optimize = library("scipy.optimize")
    names = list(free)
    guess = np.log([free[name].guess for name in names])
    # A constant may be nothing at all: a thousandth of its guess stands for that.
    lowest = np.log([max(free[name].lowest, 1e-3 * free[name].guess) for name in names])
    highest = np.log([free[name].highest for name in names])
    logs = [np.log(lesson.seconds) for lesson in lessons]
    weights = shares(lessons)

    def constants(point: Array) -> dict[str, float]:
        return {**(held or {}), **dict(zip(names, np.exp(point).tolist(), strict=True))}

    def loss(point: Array) -> float:
        total = PENALTY * float(((point - guess) ** 2).sum())
        for lesson, log, weight in zip(lessons, logs, weights, strict=True):
            own = Worked.out(lesson, family, constants(point)).reference + lesson.others
            total += float(weight @ np.sqrt((np.log(own) - log) ** 2 + SOFT**2))
        return total

    found = optimize.minimize(loss, guess, method="L-BFGS-B", bounds=list(zip(lowest, highest, strict=True)),
                              options={"maxiter": ROUNDS})
    return constants(found.x)


def shares(lessons: Sequence[Lesson]) -> list[Array]:
    """The weight of each point: architectures count alike, so do GPUs of one and tables of a GPU; all add up to 1."""
    architectures = {lesson.gpu.architecture for lesson in lessons}
    weights = []
    for lesson in lessons:
        alike = [other for other in lessons if other.gpu.architecture == lesson.gpu.architecture]
        gpus = {other.gpu.name for other in alike}
        tables = sum(other.gpu.name == lesson.gpu.name for other in alike)
        weights.append(np.full(len(lesson), 1 / (len(architectures) * len(gpus) * tables * max(1, len(lesson)))))
    return weights
