"""Which experts an engine has chosen, as it returned them, and how uneven that makes ranks.

vLLM returns `routed_experts` for each output, an array of [tokens, layers, experts a token] over all layers of the
model, those without experts included, which it leaves at 0 (`--enable-return-routed-experts`; vllm/outputs.py).  Its
server sends the bytes of a .npy file of it as base64.  Users keep arrays as .npy or .npz, and responses as JSON or JSON
lines.  A table of counts has a row for each layer and a column for each expert.
"""

import base64
import binascii
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from ksim.compute.expert_draws import ExpertDraws, mixture_layers
from ksim.compute.expert_rows import Mixture, fullness, placed
from ksim.compute.model import Model
from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import DAMAGED, LONGEST_TABLE, arrays, regular_file
from ksim.scenario.routing import table_rows
from ksim.specs.shard import Placement, Routing, Shard

__all__ = ["BATCHES", "RoutedExperts", "Unevenness", "read_routed", "unevenness"]

Floats = NDArray[np.float64]

#: Tokens of the batches for which the fullest rank is shown.
BATCHES = tuple(2**power for power in range(14))
#: The steps that are drawn of each.
STEPS = 16
#: The key of what engines return.
KEY = "routed_experts"


@frozen(eq=False)
class RoutedExperts:
    """How often each expert was chosen, `counts` (layers, experts), in the `layers` that have experts.

    `tokens` is how many were routed, None in a table of counts.
    """

    model: Model
    counts: Floats
    layers: Sequence[int]
    tokens: int | None

    def table(self) -> list[list[float]]:
        """A row for each layer of the model, as `routing` takes it; one without experts has them all alike."""
        rows = np.ones((self.model.layers, self.counts.shape[1]))
        rows[self.layers] = self.counts
        return [[int(count) if count == int(count) else count for count in row] for row in rows.tolist()]


@frozen(eq=False)
class Unevenness:
    """How uneven routing makes `ranks` that hold experts in their order.

    `fullest` is the rows of the fullest rank over those of the mean, by layer, of all tokens; `balanced_fullest` is
    that where EPLB places experts by these counts, None where they do not divide among the ranks.  `by_batch` is that
    of a batch of each of `BATCHES`, in the mean of all layers and of drawn steps.  `balancedness` is the sum over
    layers of the mean rank's rows over that of the fullest one's, as vLLM logs it.  `entropy` is that of experts, as a
    share of the most that there can be, and `correlation` that of the shares of experts of one number in neighbouring
    layers (nan with one layer, or experts that are all alike), both in the mean.
    """

    ranks: int
    fullest: Floats
    balanced_fullest: Floats | None
    by_batch: Floats
    balancedness: float
    entropy: float
    correlation: float


def read_routed(path: Path, model: Model) -> RoutedExperts:
    """Read what an engine of *model* returned, or a table of counts.

    Raises DataError for what is neither, or of another model, and ConfigError for a model without experts.
    """
    if not model.decoder.top_k:
        raise ConfigError("--model", f"{model.name} has no experts")
    found = _arrays(path)
    layers = mixture_layers(model, Shard())
    if found is None:
        return _of_counts(path, np.array(_even(path, table_rows(path))), model, layers)
    if len(found) == 1 and found[0].ndim == 2:
        return _of_counts(path, found[0], model, layers)
    return _of_tokens(path, found, model, layers)


def _even(path: Path, rows: list[list[float]]) -> list[list[float]]:
    if len({*map(len, rows)}) > 1:
        raise DataError(str(path), f"has rows of {min(map(len, rows))} to {max(map(len, rows))} numbers; a table of"
                                   f" counts has a column for each expert")
    return rows


def _arrays(path: Path) -> list[NDArray[Any]] | None:
    """The arrays in a file; None where it is a table in text."""
    regular_file(path, LONGEST_TABLE)
    if path.suffix in (".npy", ".npz"):
        try:
            return [np.load(path, allow_pickle=False)] if path.suffix == ".npy" else _some_of(
                path, [*arrays(path).values()], "save arrays in it")
        except DAMAGED as error:
            raise DataError(str(path), f"cannot be read: {error}") from None
    if path.suffix == ".csv":
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(str(path), f"is no text: {error}; arrays end in .npy or .npz") from None
    return _some_of(path, [_array(path, value) for value in _values(_parsed(path, text))],
                    "start vLLM with --enable-return-routed-experts")


def _some_of(path: Path, found: list[NDArray[Any]], remedy: str) -> list[NDArray[Any]]:
    if not found:
        raise DataError(str(path), f"has no {KEY}; {remedy}")
    return found


def _parsed(path: Path, text: str) -> list[Any]:
    """The values of JSON, or of JSON lines."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        pass
    values = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                values.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}:{number}", f"is not valid JSON: {error}") from None
    return values


def _values(parsed: Any) -> Iterator[Any]:
    """Lists of numbers, in lists or by themselves, and what stands at `KEY` anywhere in *parsed*."""
    for each in parsed:
        if isinstance(each, dict):
            yield from (value for key, value in each.items() if key == KEY and value is not None)
            yield from _values([value for key, value in each.items() if key != KEY and _has_keys(value)])
        elif isinstance(each, list):
            yield from _values(each) if _has_keys(each) else [each] if each else []


def _has_keys(value: Any) -> bool:
    """Whether *value* is a table, or a list of tables."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value))


def _array(path: Path, value: Any) -> NDArray[Any]:
    """The array of a nested list, or of the bytes of a .npy file in base64."""
    if isinstance(value, str):
        try:
            found: NDArray[Any] = np.load(io.BytesIO(base64.b64decode(value, validate=True)), allow_pickle=False)
            return found
        except (binascii.Error, *DAMAGED) as error:
            raise DataError(str(path), f"{KEY} is text that is no .npy file in base64: {error}") from None
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(str(path), f"{KEY} is no array of numbers, of [tokens, layers, experts a token]:"
                                   f" {error}") from None


def _of_counts(path: Path, counts: NDArray[Any], model: Model, layers: Sequence[int]) -> RoutedExperts:
    """The counts of a table, which has a row for each layer, or for each that has experts."""
    experts = model.decoder.sizes["E"]
    _check_numbers(path, counts)
    if counts.ndim != 2 or len(counts) not in (len(layers), model.layers) or counts.shape[1] != experts:
        raise DataError(str(path), f"has counts of shape {_shape(counts)}; {model.name} has {len(layers)} layers of"
                                   f" {experts} experts{_of_all(model, layers)}")
    if counts.min() < 0:
        raise DataError(str(path), f"has a count of {counts.min():g}; counts are 0 or more")
    table = counts[layers] if len(counts) == model.layers else counts
    return RoutedExperts(model, _some(path, table.astype(np.float64), layers), layers, None)


def _of_tokens(path: Path, found: Sequence[NDArray[Any]], model: Model, layers: Sequence[int]) -> RoutedExperts:
    """The counts of arrays of [tokens, layers, experts a token]."""
    experts, tokens = model.decoder.sizes["E"], 0
    counts = np.zeros((len(layers), experts))
    for array in found:
        chosen = _chosen(path, array, model, layers)
        tokens += len(chosen)
        numbers = chosen + np.arange(len(layers))[:, None] * experts
        counts += np.bincount(numbers.ravel(), minlength=counts.size).reshape(counts.shape)
    return RoutedExperts(model, _some(path, counts, layers), layers, tokens)


def _chosen(path: Path, array: NDArray[Any], model: Model, layers: Sequence[int]) -> NDArray[np.int64]:
    """The experts of each token in the layers that have experts; tokens that were not routed are left out."""
    top_k, experts = model.decoder.top_k, model.decoder.sizes["E"]
    if array.ndim != 3 or array.shape[1] not in (len(layers), model.layers) or array.shape[2] != top_k:
        raise DataError(str(path), f"has an array of shape {_shape(array)}; {KEY} of {model.name} has [tokens,"
                                   f" {len(layers)} layers, {top_k} experts a token]{_of_all(model, layers)}")
    _check_numbers(path, array)
    given = array[:, layers] if array.shape[1] == model.layers else array
    chosen = given.astype(np.int64)
    if (chosen != given).any():
        raise DataError(str(path), f"has numbers of experts with fractions; {KEY} has whole numbers")
    padding = [-1, 0] if top_k > 1 else [-1]  # of one expert a token, 0 may be meant
    chosen = chosen[~np.isin(chosen, padding).all(axis=(1, 2))]
    outside = (chosen < 0) | (chosen >= experts)
    if outside.any():
        _, layer, _ = np.argwhere(outside)[0]
        raise DataError(str(path), f"names expert {chosen[outside][0]} in layer {layers[layer]}; those of {model.name}"
                                   f" are 0 to {experts - 1}")
    ordered = np.sort(chosen, axis=2)
    if (twice := (ordered[:, :, 1:] == ordered[:, :, :-1]).any(axis=2)).any():
        _, layer = np.argwhere(twice)[0]
        raise DataError(str(path), f"has a token that goes to one expert twice, in layer {layers[layer]}; the experts"
                                   f" of a token are different ones")
    return chosen


def _check_numbers(path: Path, array: NDArray[Any]) -> None:
    if array.dtype.kind not in "iuf":
        raise DataError(str(path), f"has an array of {array.dtype}, not of numbers")
    if not array.size:
        raise DataError(str(path), "has no rows")
    if not np.isfinite(array).all():
        raise DataError(str(path), "has a value that is not a finite number")


def _some(path: Path, counts: Floats, layers: Sequence[int]) -> Floats:
    """*counts*; raises DataError for a layer without any."""
    empty = np.flatnonzero(counts.sum(axis=1) == 0)
    if len(empty):
        raise DataError(str(path), f"has no token that was routed in layer {layers[empty[0]]}")
    return counts


def _shape(array: NDArray[Any]) -> str:
    return f"[{', '.join(map(str, array.shape))}]"


def _of_all(model: Model, layers: Sequence[int]) -> str:
    return f", of {model.layers} in all" if len(layers) < model.layers else ""


def unevenness(routed: RoutedExperts, ranks: int) -> Unevenness:
    """How uneven *ranks* are that share the experts; raises ConfigError for more ranks than experts."""
    counts, experts = routed.counts, routed.counts.shape[1]
    if not 1 <= ranks <= experts:
        raise ConfigError("--ranks", f"{ranks} do not share {experts} experts; set 1 to {experts}")
    shares = counts / counts.sum(axis=1, keepdims=True)
    fullest = _fullest(shares, ranks, Placement())
    balanced = None if experts % ranks else _fullest(shares, ranks, Placement("balanced"))
    uneven = -(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=1) / np.log(experts)
    return Unevenness(ranks, fullest, balanced, _by_batch(routed, ranks), float(1 / fullest.mean()),
                      float(uneven.mean()), _correlation(shares))


def _fullest(shares: Floats, ranks: int, placement: Placement) -> Floats:
    return np.array([fullness(row, placed(row, ranks, placement)).max() * ranks for row in shares])


def _by_batch(routed: RoutedExperts, ranks: int) -> Floats:
    """The rows of the fullest rank over the mean, for each of `BATCHES`, in the mean of layers and drawn steps."""
    shares = tuple(map(tuple, routed.counts.tolist()))
    mixture = Mixture(routed.model.decoder.top_k, routed.counts.shape[1], Routing(shares=shares), ranks)
    draws = ExpertDraws(mixture, range(len(shares)), seed=0)
    rows = [np.mean([draws.draw(tokens).rows.max(axis=1) for _ in range(STEPS)]) for tokens in BATCHES]
    mean: Floats = np.array(rows) * ranks / (mixture.top_k * np.array(BATCHES))
    return mean


def _correlation(shares: Floats) -> float:
    """The mean correlation of the shares of experts of one number in neighbouring layers."""
    centred = shares - shares.mean(axis=1, keepdims=True)
    size = np.sqrt((centred**2).sum(axis=1))
    products, scale = (centred[1:] * centred[:-1]).sum(axis=1), size[1:] * size[:-1]
    return float((products[scale > 0] / scale[scale > 0]).mean()) if (scale > 0).any() else float("nan")
