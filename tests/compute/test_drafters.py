"""Drafters: sizes as published, what they borrow, and the passes that they run."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute import drafters
from ksim.compute.drafters import Drafter, eagle, eagle3
from ksim.compute.model import Config, Model
from ksim.compute.notation import weighted
from ksim.compute.sizes import Sizes
from ksim.flow.batch import Batch
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.scenario.models import model_of, model_of_table
from ksim.specs.shard import Shard
from tests.properties import examples

LLAMA = model_of("llama-3.1-8b")
#: Llama 2, whose EAGLE heads are the first that were published, and Llama 3's.
LLAMAS = {
    "llama2-7b": (4096, 11008, 32, 32, 32000), "llama2-13b": (5120, 13824, 40, 40, 32000),
    "llama2-70b": (8192, 28672, 64, 8, 32000),
}


def llama_table(hidden: int, mlp: int, heads: int, kv_heads: int, vocabulary: int) -> dict[str, object]:
    return {"model_type": "llama", "hidden_size": hidden, "intermediate_size": mlp, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "vocab_size": vocabulary, "num_hidden_layers": 1,
            "max_position_embeddings": 4096}


def head(name: str, target: Model = LLAMA) -> Drafter:
    make = eagle3 if name.startswith("eagle3") else eagle
    return make(Config(name, catalog.load("drafters", name)), target)


# github.com/SafeAILab/EAGLE, README.md (01aa119): 0.24 B for 7 B, 0.37 B for 13 B, 0.99 B for 70 B.
@pytest.mark.parametrize(("name", "billions"), [("llama2-7b", 0.24), ("llama2-13b", 0.37), ("llama2-70b", 0.99)])
def test_eagle_heads_are_as_large_as_published(name: str, billions: float) -> None:
    target = model_of_table(name, llama_table(*LLAMAS[name]))
    drafter = eagle(Config(name, llama_table(*LLAMAS[name])), target)
    assert drafter.parameters() / 1e9 == pytest.approx(billions, abs=0.005)


# Hugging Face, thomaskiefer/EAGLE3-Apertus-8B-Instruct-2509: 513 M parameters at these sizes.
def test_eagle3_head_is_as_large_as_published() -> None:
    table = llama_table(4096, 21504, 32, 8, 131072)
    drafter = eagle3(Config("apertus", {**table, "draft_vocab_size": 32000}), model_of_table("apertus", table))
    assert drafter.parameters() / 1e6 == pytest.approx(513, abs=0.5)


# github.com/deepseek-ai/DeepSeek-V3, README.md: 685 B, of which 671 B are the main model and 14 B the module with its
# copies of embedding and head; README_WEIGHTS.md: 11.5 B without them.
def test_deepseek_with_its_module_is_as_large_as_published() -> None:
    model = model_of("deepseek-v3")
    copies = 2 * model.decoder.sizes["m"] * model.decoder.sizes["V"]
    assert round(model.parameters() / 1e9) == 671
    assert (model.parameters() + drafters.parameters(model) + copies) / 1e9 == pytest.approx(685, abs=0.6)
    assert drafters.parameters(model) / 1e9 == pytest.approx(11.5, abs=0.15)


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.2", "glm-4.5-air", "glm-5", "qwen3-next-80b-a3b",
                                  "qwen3.5-27b", "qwen3.5-397b-a17b"])
def test_a_module_is_a_layer_a_projection_and_three_norms(name: str) -> None:
    model = model_of(name)
    sizes = Sizes(model.decoder.sizes)
    layer = sum(op.parameters(sizes) for op in weighted(model.decoder.layers[-1]))
    hidden = sizes.of["m"]
    assert drafters.parameters(model) == layer + 2 * hidden * hidden + 3 * hidden


@pytest.mark.parametrize("name", ["kimi-k2", "llama-3.1-8b", "minimax-m2"])
def test_models_without_such_modules_have_none(name: str) -> None:
    assert model_of(name).decoder.mtp == () and drafters.parameters(model_of(name)) == 0


def test_module_multiplies_what_it_weighs() -> None:
    """FLOP of a token: two for each weight that it meets in a product, the borrowed head's among them."""
    target, shard, token = model_of("qwen3-next-80b-a3b"), Shard(), Batch.of((1, 1))
    model = drafters.drafter(target, 1).first
    found = sum(kernel.work.flops for _, kernel in model.graph(1, 1, shard).over(token)
                if kernel.family in ("gemm", "grouped_gemm"))
    sizes = target.decoder.sizes
    idle = sizes["E"] - target.decoder.top_k
    met = model.parameters() - 3 * idle * sizes["m"] * sizes["f"] + sizes["m"] * sizes["V"]
    assert found == pytest.approx(2 * met, rel=1e-3)  # norms are weights that no product reads


def test_passes_may_share_what_an_indexer_has_chosen() -> None:
    table, shard, batch = catalog.load("models", "glm-5"), Shard(), Batch.of((1, 5000))
    for shares in (False, True):
        drafter = drafters.drafter(model_of_table("mine", {**table, "index_share_for_mtp_iteration": shares}), 2)
        first, later = ({label for label, _ in model.graph(1, 1, shard).over(batch)}
                        for model in (drafter.first, drafter.later))
        indexer = {label for label in first if label.startswith(("draft.index", "draft.choose"))}
        assert later == first - indexer if shares else later == first
        assert "draft.choose_decodes" in first
        assert drafter.weights(shard) == drafters.drafter(model_of("glm-5"), 2).weights(shard)


@pytest.mark.parametrize(("pattern", "layers"), [("*E", 2), ("*", 1)])
def test_a_module_has_a_layer_of_each_kind_of_its_pattern(pattern: str, layers: int) -> None:
    table = {**catalog.load("models", "nemotron-3-super-120b-a12b"), "mtp_hybrid_override_pattern": pattern}
    model = model_of_table("mine", table)
    (module,) = model.decoder.mtp
    assert sum(op.label == "norm" for op in module) == layers and any(op.label == "attention" for op in module)
    assert any(op.label == "router" for op in module) == ("E" in pattern)
    with pytest.raises(ConfigError, match="is no layer of the model"):
        model_of_table("mine", {**table, "mtp_hybrid_override_pattern": "*-"})


def test_a_borrowed_embedding_and_head_take_no_memory() -> None:
    drafter, shard = head("eagle-llama-3.1-8b"), Shard()
    sizes = LLAMA.decoder.sizes
    assert drafter.weights(shard) == 2 * drafter.parameters() < 2 * sizes["m"] * sizes["V"]
    assert any(op.label == "draft.lm_head" for op in drafter.first.sampled(1, shard))


def test_every_module_has_weights_and_a_cache_of_its_own() -> None:
    table = {**catalog.load("models", "deepseek-v3"), "num_nextn_predict_layers": 2}
    one, two = model_of("deepseek-v3"), model_of_table("two", table)
    first, both = drafters.drafter(one, 2), drafters.drafter(two, 2)
    assert both.weights(Shard()) == 2 * first.weights(Shard())
    assert both.cache_by_layer(Shard()) == 2 * first.cache_by_layer(Shard())
    assert both.turns and not first.turns and not drafters.drafter(two, 1).turns


@pytest.mark.parametrize(("change", "text"), [
    ({"vocab_size": 32000}, "one for another model"), ({"model_type": "gpt_oss"}, "no family of EAGLE heads"),
    ({"num_hidden_layers": 2}, "not modelled"), ({"hidden_size": 2048}, "whose hidden states the head reads")])
def test_heads_of_other_targets_are_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        eagle(Config("mine", {**catalog.load("drafters", "eagle-llama-3.1-8b"), **change}), LLAMA)


def test_speculators_format_is_read() -> None:
    """A config.json of the speculators library has the layer in a table of its own."""
    flat = catalog.load("drafters", "eagle3-llama-3.1-8b")
    outer = {"speculators_model_type": "eagle3", "draft_vocab_size": flat["draft_vocab_size"],
             "transformer_layer_config": {key: value for key, value in flat.items() if key != "draft_vocab_size"}}
    assert eagle3(Config("eagle3", outer), LLAMA).parameters() == head("eagle3-llama-3.1-8b").parameters()


SEQUENCES = st.lists(st.tuples(st.sampled_from([1, 3, 4, 700]), st.integers(0, 5000)), min_size=1, max_size=12)


@given(SEQUENCES, st.integers(1, 4), st.integers(1, 5))
@examples(60)
def test_passes_go_on_where_the_last_ended(sequences: list[tuple[int, int]], width: int, tokens: int) -> None:
    batch = Batch.of(*sequences, width=width)
    drafter = head("eagle3-llama-3.1-8b")
    first, later = drafter.first_pass(batch), drafter.later_passes(batch, tokens)
    assert (first.tokens, first.logits, first.chunks) == (batch.tokens, batch.sequences, batch.chunks)
    assert len(later) == tokens - 1
    ends = sorted(new + context for new, context in sequences)
    for place, further in enumerate(later):
        assert sorted(further.contexts) == [end + place for end in ends] and further.tokens == batch.sequences
    assert all(before.contexts.offsets is after.contexts.offsets for before, after in pairwise(later))


def test_a_draft_model_reads_the_last_token_too() -> None:
    draft = Drafter(head("eagle-llama-3.1-8b").first, head("eagle-llama-3.1-8b").later, more=1)
    batch = Batch.of((4, 100), (700, 0), width=4)
    first = draft.first_pass(batch)
    assert first.tokens == batch.tokens + 2 and first.width == 5 and first.chunks == ((701, 0),)
    assert sorted(draft.later_passes(batch, 2)[0].contexts) == [105, 701]
