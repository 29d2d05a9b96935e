"""Fit small models to log efficiencies: one function a kind, each from inputs, targets and weights."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from ksim.foundation.errors import ConfigError
from ksim.oracles.efficiency.models import (
    Constant,
    Interpolation,
    Linear,
    Model,
    Network,
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


KINDS: Mapping[str, Callable[..., Model]] = {
    "nothing": nothing, "constant": constant, "linear": linear, "network": network,
    "interpolation": interpolation, "layered_interpolation": layered_interpolation,
}


NOTHING = Recipe("nothing")


def library(name: str) -> Any:
    """Import what only fitting needs; raises ConfigError that says how to install it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(name, "is needed to fit models; install it with `pip install 'ksim[fit]'`") from None
