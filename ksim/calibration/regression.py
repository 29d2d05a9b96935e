"""Regression: constants of a family's physics, and small models of the log efficiency that remains.

To add a kind of model, add a function of inputs, targets and weights to `KINDS`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from ksim.calibration.dataset import Dataset, PhysicsOfDataset
from ksim.foundation.errors import MissingExtra
from ksim.oracles.efficiency.families import Constants, Family
from ksim.oracles.efficiency.models import (
    Array,
    Constant,
    EfficiencyModel,
    Interpolation,
    Linear,
    Perceptrons,
    column_side,
    kernel_of,
    row_side,
)

#: Iterations of the weighted least squares that find least absolute errors.
ROUNDS = 30
#: Residuals of log time below this all have the same weight.
SMALL = 0.01
#: Errors of log time below this count by their square; larger ones count linearly.
SOFT = 0.02
#: Penalty, in log error, for a constant that is off its guess by a factor of e: keeps constants at their guess if the
#: data says nothing about them.
PENALTY = 2e-4
#: The most iterations of the fit of constants.
MOST_ITERATIONS = 250


@frozen
class Regressor:
    """A kind of model and the options of its fit, such as ``Regressor("network", {"hidden": 24})``."""

    kind: str
    options: Mapping[str, Any] = field(factory=dict)

    def fit(self, inputs: Array, targets: Array, weights: Array | None = None) -> EfficiencyModel:
        """Fit to *targets* (rows,) at *inputs* (rows, inputs); raise MissingExtra if a library is missing."""
        weights = np.ones(len(targets)) if weights is None else weights / weights.mean()
        return KINDS[self.kind](inputs, targets, weights, **self.options)


def nothing(inputs: Array, targets: Array, weights: Array) -> Constant:
    """Leave the prediction to the physics."""
    return Constant(0.0)


def constant(inputs: Array, targets: Array, weights: Array) -> Constant:
    """Fit the weighted median."""
    return Constant(weighted_median(targets, weights))


def weighted_median(values: Array, weights: Array) -> float:
    """The value that has half of the weight below it."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(share, share[-1] / 2)])


def linear(inputs: Array, targets: Array, weights: Array, ridge: float = 1e-3) -> Linear:
    """Fit by least absolute errors; *ridge* shrinks the slopes, and outputs stay in the range of the targets."""
    mean, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-9)
    rows = np.column_stack([(inputs - mean) / scale, np.ones(len(inputs))])
    penalty = ridge * weights.sum() * np.diag([1.0] * inputs.shape[1] + [0.0])
    solution, robust = np.zeros(rows.shape[1]), weights
    for _ in range(ROUNDS):
        solution = np.linalg.solve((rows.T * robust) @ rows + penalty, (rows.T * robust) @ targets)
        robust = weights / np.maximum(np.abs(targets - rows @ solution), SMALL) * SMALL
    slopes = solution[:-1] / scale
    return Linear(solution[-1] - mean @ slopes, slopes, targets.min(), targets.max())


def network(inputs: Array, targets: Array, weights: Array, hidden: int = 24, members: int = 4, decay: float = 1e-3,
            rounds: int = 60, reach: float = 3.0, seed: int = 0) -> Perceptrons:
    """Fit perceptrons from different starts; rows are drawn by their weights, which the library does not support."""
    sklearn = library("sklearn.neural_network")
    mean, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-9)
    rows = np.clip((inputs - mean) / scale, -reach, reach)
    fitted = []
    for member in range(members):
        drawn = np.random.default_rng([seed, member]).choice(len(rows), len(rows), p=weights / weights.sum())
        perceptron = sklearn.MLPRegressor(
            hidden_layer_sizes=(hidden, hidden), activation="tanh", alpha=decay, max_iter=rounds, tol=0.0,
            batch_size=min(256, len(rows)), learning_rate_init=3e-3, random_state=seed + member)
        with warnings.catch_warnings():  # the rounds are a budget, so it is no failure to use them up
            warnings.simplefilter("ignore")
            fitted.append(perceptron.fit(rows[drawn], targets[drawn]))
    layers = [np.stack([np.vstack([net.coefs_[i], net.intercepts_[i]]) for net in fitted]) for i in range(3)]
    return Perceptrons(mean, scale, reach, layers[0], layers[1], layers[2][:, :, 0])


def interpolation(inputs: Array, targets: Array, weights: Array, base: Regressor = Regressor("constant"),
                  most: int = 500) -> Interpolation:
    """Fit a Gaussian process to the residuals of *base*; its lengths and noise are the likeliest for *most* rows."""
    trend = base.fit(inputs, targets, weights)
    residuals = targets - trend(inputs)
    lengths, noise = _likeliest(inputs, residuals, most)
    model = Interpolation(trend, 1.0, [1.0], lengths[None], inputs, residuals)
    return evolve(model, weights=np.linalg.solve(_covariance(model) + noise * np.eye(len(residuals)), residuals))


def layered_interpolation(inputs: Array, targets: Array, weights: Array, amplitudes: Sequence[float],
                          lengths: Sequence[Sequence[float]], slopes: Sequence[float], noise: float,
                          cut: float = 3.0) -> Interpolation:
    """Fit a Gaussian process with given exponential kernels, for values that jump from row to row.

    The process is around the trend ``inputs @ slopes``.  A row further than *cut*
    robust standard deviations from what the other rows predict for it is pulled in
    to that distance, three times over.
    """
    trend = inputs @ np.asarray(slopes)
    middle = constant(inputs, targets - trend, weights).value
    base = Linear(middle, slopes, -np.inf, np.inf)
    residuals = targets - base(inputs)
    model = Interpolation(base, 0.0, amplitudes, lengths, inputs, residuals)
    inverse = np.linalg.inv(_covariance(model) + noise * np.eye(len(inputs)))
    for _ in range(3):
        missed = inverse @ residuals / np.diag(inverse)  # leave-one-out errors
        most = cut * 1.4826 * float(np.median(np.abs(missed)))
        residuals = residuals - np.sign(missed) * np.maximum(np.abs(missed) - most, 0.0)
    return evolve(model, weights=inverse @ residuals)


def _covariance(model: Interpolation) -> Array:
    """Return the covariance of the model's points."""
    total = np.zeros((len(model.points), len(model.points)))
    for amplitude, lengths in zip(model.amplitudes, model.lengths, strict=True):
        points = model.points[:, np.isfinite(lengths)] / lengths[np.isfinite(lengths)]
        total += amplitude * kernel_of(row_side(points) @ column_side(points), float(model.smooth))
    return total


def _likeliest(inputs: Array, residuals: Array, most: int) -> tuple[Array, float]:
    """Return the kernel's length along each input, and the share of noise in the variance, by marginal likelihood."""
    processes = library("sklearn.gaussian_process")
    kernels = library("sklearn.gaussian_process.kernels")
    scale = np.maximum(inputs.std(axis=0), 1e-9)
    sample = np.random.default_rng(0).permutation(len(inputs))[:most]
    kernel = (kernels.ConstantKernel(1.0, (1e-3, 1e3)) * kernels.Matern(np.full(inputs.shape[1], 1.5), (0.2, 20.0), 1.5)
              + kernels.WhiteKernel(0.1, (1e-4, 1e1)))
    process = processes.GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    with warnings.catch_warnings():  # a length at its bound means that the input has no effect
        warnings.simplefilter("ignore")
        process.fit(inputs[sample] / scale, residuals[sample])
    fitted = process.kernel_
    # The library multiplies distances by the square root of 3.
    return scale * fitted.k1.k2.length_scale / 3**0.5, float(fitted.k2.noise_level / fitted.k1.k1.constant_value)


KINDS: Mapping[str, Callable[..., EfficiencyModel]] = {
    "nothing": nothing, "constant": constant, "linear": linear, "network": network, "interpolation": interpolation,
    "layered_interpolation": layered_interpolation,
}


NOTHING = Regressor("nothing")


def library(name: str) -> Any:
    """Import a library that only fitting needs; raise MissingExtra if it is missing."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra("fit", "fitting models") from None


@frozen
class Free:
    """A constant to fit: its bounds, and a first guess from data sheets and round numbers."""

    lowest: float
    guess: float
    highest: float


def fit_constants(family: Family, datasets: Sequence[Dataset], free: Mapping[str, Free],
                  held: Constants | None = None) -> dict[str, float]:
    """Fit the *free* constants to the least absolute error of log time over *datasets*, weighted by `shares`.

    The *held* constants keep their values.
    """
    optimize = library("scipy.optimize")
    names = list(free)
    guess = np.log([free[name].guess for name in names])
    # Zero has no logarithm: a thousandth of the guess stands for it.
    lowest = np.log([max(free[name].lowest, 1e-3 * free[name].guess) for name in names])
    highest = np.log([free[name].highest for name in names])
    logs = [np.log(dataset.seconds) for dataset in datasets]
    weights = shares(datasets)

    def constants(point: Array) -> dict[str, float]:
        return {**(held or {}), **dict(zip(names, np.exp(point).tolist(), strict=True))}

    def loss(point: Array) -> float:
        total = PENALTY * float(((point - guess) ** 2).sum())
        for dataset, log, weight in zip(datasets, logs, weights, strict=True):
            seconds = PhysicsOfDataset.of(dataset, family, constants(point)).reference + dataset.other_seconds
            total += float(weight @ np.sqrt((np.log(seconds) - log) ** 2 + SOFT**2))
        return total

    best = optimize.minimize(loss, guess, method="L-BFGS-B", bounds=list(zip(lowest, highest, strict=True)),
                             options={"maxiter": MOST_ITERATIONS})
    return constants(best.x)


def shares(datasets: Sequence[Dataset]) -> list[Array]:
    """Return the weight of each point; all weights add up to 1.

    Architectures have equal weights, and so do the GPUs of an architecture and the tables of a GPU.
    """
    architectures = {dataset.gpu.architecture for dataset in datasets}
    weights = []
    for dataset in datasets:
        relatives = [peer for peer in datasets if peer.gpu.architecture == dataset.gpu.architecture]
        gpus = {peer.gpu.name for peer in relatives}
        tables = sum(peer.gpu.name == dataset.gpu.name for peer in relatives)
        weights.append(np.full(len(dataset), 1 / (len(architectures) * len(gpus) * tables * max(1, len(dataset)))))
    return weights
