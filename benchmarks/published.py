"""`python -m benchmarks.published`: write the table of models in docs/evidence/accuracy.md."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages import put
from ksim.compute import drafters
from ksim.compute.model import FurtherModel, Model
from ksim.foundation import catalog
from ksim.scenario.models import model_of
from ksim.specs.shard import Shard

ROOT = Path(__file__).parents[1]
PAGE, CONFIGS = ROOT / "docs" / "evidence" / "accuracy.md", ROOT / "tests" / "compute" / "configs"
#: What is published of each model; the file says what its keys mean.
PUBLISHED: Mapping[str, dict[str, Any]] = tomllib.loads((CONFIGS.parent / "published.toml").read_text(encoding="utf-8"))
#: What published numbers may have beside the language model.
BESIDE = {"mtp": "modules for multi-token prediction", "encoder": "encoder"}
_UNITS = {"M": 6, "B": 9, "T": 12}


def counted(model: Model, published: Mapping[str, Any]) -> int:
    """The parameters of *model* with what the *published* number has beside them."""
    decoder, beside, copies = model.decoder, published.get("with", []), int(published.get("copies", 0))
    total = model.parameters() + copies * decoder.sizes["V"] * decoder.sizes["m"]
    if "mtp" in beside:
        total += drafters.parameters(model)
    if "encoder" in beside and decoder.encoder is not None:
        total += FurtherModel("encoder", decoder.encoder, prefix="encoder.").parameters()
    return total


def within(parameters: int, published: int | str) -> bool:
    """Whether *parameters* are the *published* number, or round to it; an empty one says nothing."""
    if isinstance(published, int) or not published:
        return parameters == (published or parameters)
    digits, exponent = published[:-1], _UNITS[published[-1]]
    whole, _, fraction = digits.partition(".")
    zeros = 0 if fraction else len(whole) - len(whole.rstrip("0"))
    return abs(parameters - float(digits) * 10.0**exponent) <= 0.5 * 10.0 ** (exponent - len(fraction) + zeros)


def rows() -> Iterator[str]:
    """The lines of the table."""
    yield "| model | `model_type` | parameters | published | active | KV bytes a token | source |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for name, published in PUBLISHED.items():
        path = CONFIGS / f"{name}.json"
        yield _row(name, model_of(str(path) if path.exists() else name), published)


def _row(name: str, model: Model, published: Mapping[str, Any]) -> str:
    number, config = published["parameters"], _config(name)
    said = f"{number:,}" if isinstance(number, int) else number or "-"
    for word in published.get("with", []):
        said += f" with {BESIDE[word]}"
    source = published.get("source") or f"safetensors of {config['_name_or_path']}"
    return (f"| {name} | `{config['model_type']}` | {model.parameters():,} | {said} | {model.active_parameters():,} |"
            f" {model.cache_per_token(Shard()):,.0f} | {source} |")


def _config(name: str) -> Mapping[str, Any]:
    path = CONFIGS / f"{name}.json"
    return catalog.load("models", str(path) if path.exists() else name)


if __name__ == "__main__":
    put(PAGE, "published", rows())
