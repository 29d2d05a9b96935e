"""What the tests of compute share: models of the catalogue, and a small one of one's own."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from ksim.compute.model import Config, Model
from ksim.foundation import catalog
from ksim.scenario.models import family

#: A transformer small enough to count by hand: 2 layers, 8 query heads on 4 KV heads of 16.
SMALL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 4096,
}


def build(name: str, table: dict[str, Any]) -> Model:
    return Model(name, catalog.find("compute.architectures", family(Config(name, table)))(Config(name, table)))


@cache
def catalogue_model(name: str) -> Model:
    return build(name, catalog.load("models", name))


@pytest.fixture
def model() -> Callable[[str], Model]:
    """Models of the catalogue by name."""
    return catalogue_model


@pytest.fixture
def small() -> Callable[..., Model]:
    """The small model, with the settings given."""
    return lambda **settings: build("small.json", {**SMALL, **settings})
