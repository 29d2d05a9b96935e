"""Every model against what is published of its size, and against the textbook's formulas."""

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.published import BESIDE, PUBLISHED, counted, within
from ksim.compute.model import Config
from ksim.compute.notation import weighted
from ksim.compute.sizes import Sizes
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.scenario.models import family, model_of_table
from ksim.specs.shard import Shard
from tests.models import FURTHER, MADE_UP, NAMES, POPULAR, READ, model_of, table_of


def test_every_model_and_every_family_is_here():
    assert {*PUBLISHED} == {*NAMES} - {*MADE_UP} - {*READ}
    families = {family(Config(name, table_of(name))) for name in NAMES}
    inner = {table_of(name).get("text_config", {}).get("model_type", "") for name in NAMES}
    assert families | inner >= {*catalog.names("compute.architectures")}
    assert not {*FURTHER} & {*catalog.entries("models")}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_are_published(name):
    published = PUBLISHED[name]
    assert {*published.get("with", [])} <= {*BESIDE}
    assert within(counted(model_of(name), published), published["parameters"])


@pytest.mark.parametrize("name", POPULAR)
def test_a_popular_model_is_read_or_refused_with_the_reason(name):
    row = POPULAR[name]
    if "refused" in row:
        with pytest.raises(ConfigError, match=row["refused"]):
            model_of_table(name, row["config"])
    elif "config" in row:
        counts = counted(model_of(name), {"with": ["mtp", "encoder"]}) + row.get("beside", 0)
        assert within(counts, row["parameters"])
    else:
        assert row["catalogue"] in PUBLISHED


@pytest.mark.parametrize("name", NAMES)
def test_weights_take_two_bytes_each_but_for_those_in_fp32(name):
    decoder = model_of(name).decoder
    operations = [*decoder.embedding, *(op for layer in decoder.layers for op in layer), *decoder.head]
    exact = sum(op.parameters(Sizes(decoder.sizes)) for op in weighted(operations)
                if DType.FP32 in (getattr(op, "format", None), getattr(op, "weight_format", None)))
    assert model_of(name).weights(Shard()) == 2 * model_of(name).parameters() + 2 * exact


@pytest.mark.parametrize("name", NAMES)
def test_a_token_caches_what_the_textbook_says(name):
    said = {**PUBLISHED, **POPULAR}.get(name, {}).get("cache")
    assert model_of(name).cache_per_token(Shard()) == (said or textbook(table_of(name)))


def textbook(table: Mapping[str, Any]) -> int:
    """2 x 2 bytes x layers x KV heads x head dimension; of latent attention, 2 bytes x (latent vector + rotary key)."""
    table = {**table, **table.get("text_config", {}), **table.get("llm_config", {})}
    table = {**table, **table.get("thinker_config", {}).get("text_config", {})}
    layers = table.get("num_hidden_layers") or table.get("num_layers") or table["n_layer"]
    if rank := table.get("kv_lora_rank"):
        own = table.get("indexer_types", ["full"] * layers).count("full") * ("index_topk" in table)
        return layers * 2 * (rank + table["qk_rope_head_dim"]) + own * (table.get("index_head_dim", 0) + 4)
    hidden, heads = (table.get(new) or table[old] for new, old in (("hidden_size", "n_embd"),
                                                                 ("num_attention_heads", "n_head")))
    return 4 * layers * table.get("num_key_value_heads", heads) * (table.get("head_dim") or hidden // heads)
