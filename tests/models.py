"""Every model that tests know: the catalogue's, further real configs, and made-up ones of families that lack any."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from ksim.compute.model import Model
from ksim.foundation import catalog
from ksim.scenario.models import model_of_table

CONFIGS = Path(__file__).parent / "compute" / "configs"
#: Popular models by their names on the Hugging Face Hub: a config, and what is published of its parameters or why ksim
#: refuses it; or the model of the catalogue.  Sizes are the published ones; numbers that change no cost may not be.
#: `beside` is what the published number has beside ksim's: parts that see and hear, and keys of layers that share them.
POPULAR: dict[str, dict[str, Any]] = json.loads((CONFIGS.parent / "popular.json").read_text(encoding="utf-8"))
_SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
          "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 4096}
#: Families that are others under a name, or of which there is no config here.
MADE_UP: dict[str, dict[str, Any]] = {
    "small ministral": {**_SMALL, "model_type": "ministral", "sliding_window": 1024, "layer_types": [
        "full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]},
    "small ministral3": {**_SMALL, "model_type": "ministral3", "rope_parameters": {
        "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256, "llama_4_scaling_beta": 0.1}},
    "small granitemoeshared": {**_SMALL, "model_type": "granitemoeshared", "num_local_experts": 8,
                               "num_experts_per_tok": 2, "shared_intermediate_size": 1024, "logits_scaling": 6.0},
}
FURTHER = sorted(path.stem for path in CONFIGS.glob("*.json"))
READ = [name for name, row in POPULAR.items() if "config" in row and "refused" not in row]
NAMES = [*catalog.entries("models"), *FURTHER, *MADE_UP, *READ]


def table_of(name: str) -> dict[str, Any]:
    if name in POPULAR:
        return POPULAR[name]["config"]
    if name in MADE_UP:
        return MADE_UP[name]
    return json.loads((CONFIGS / f"{name}.json").read_text()) if name in FURTHER else catalog.load("models", name)


@cache
def model_of(name: str) -> Model:
    return model_of_table(name, table_of(name))


def representatives() -> list[str]:
    """One model of each structure: others have the same operations in other sizes, or in more layers."""
    found: dict[Any, str] = {}
    for name in NAMES:
        decoder = model_of(name).decoder
        layers = frozenset(tuple((type(op), op.label) for op in layer) for layer in {*decoder.layers})
        found.setdefault((layers, decoder.tied, len(decoder.embedding), len(decoder.head)), name)
    return [*found.values()]
