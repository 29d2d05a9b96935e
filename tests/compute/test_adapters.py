"""What LoRA adapters add to a layer: work, launches, slots and copies."""

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as some

from ksim.compute.adapters import MODULES as MODULES_OF
from ksim.compute.adapters import AdapterSlots, adapted, bytes_by_module, matrices, module_names, slots_of
from ksim.compute.graph import Collective, bind, is_of_adapters
from ksim.compute.kernels.basic import LoraGemm
from ksim.compute.notation.product import Product
from ksim.compute.sizes import Sizes
from ksim.flow.batch import Batch
from ksim.flow.request import AdapterLoad
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.scenario.models import model_of
from ksim.specs.shard import Shard
from tests.properties import examples

LLAMA = model_of("llama-3.1-8b")
SLOTS = AdapterSlots(4, 16, 50e9)
ALONE = Shard()
#: Inputs and outputs of the modules of a layer of Llama 3.1 8B.
MODULES = {"q_proj": (4096, 4096), "k_proj": (4096, 1024), "v_proj": (4096, 1024), "o_proj": (4096, 4096),
           "gate_proj": (4096, 14336), "up_proj": (4096, 14336), "down_proj": (14336, 4096)}
WIDTHS = sum(map(sum, MODULES.values()))


def launched(model, batch, shard=ALONE):
    """What a step launches for adapters, unfolded."""
    blocks = model.body(batch.tokens, shard)
    return [(op.label, kernel) for block in blocks for _ in range(block.repeat) for op in block.ops
            if is_of_adapters(op.kernel) and (kernel := bind(op.kernel, batch)) is not None]


def gemms(model, batch, shard=ALONE) -> list[LoraGemm]:
    return [kernel for _, kernel in launched(model, batch, shard) if isinstance(kernel, LoraGemm)]


def with_adapters(*tokens: int, more: int = 0) -> Batch:
    return evolve(Batch.of((sum(tokens) + more, 0)), adapters=tuple(sorted(tokens, reverse=True)))


@given(tokens=some.lists(some.integers(1, 900), min_size=1, max_size=4), more=some.integers(0, 99),
       rank=some.sampled_from([1, 8, 64, 256]))
@examples(20)
def test_shrink_and_expand_compute_2_x_tokens_x_rank_x_in_and_out_for_each_target(tokens, more, rank):
    model = adapted(LLAMA, evolve(SLOTS, rank=rank))
    work = [kernel.work for kernel in gemms(model, with_adapters(*tokens, more=more))]
    assert sum(each.flops for each in work) == 32 * 2 * sum(tokens) * rank * WIDTHS
    assert all(each.padded >= each.flops for each in work)


@pytest.mark.parametrize("ways", [2, 4, 8])
@pytest.mark.parametrize("fully_sharded", [False, True])
def test_ranks_compute_as_much_together_but_for_what_each_repeats(ways, fully_sharded):
    """Without fully sharded adapters, each rank shrinks whole inputs of split outputs, and expands to whole outputs."""
    model, batch = adapted(LLAMA, evolve(SLOTS, fully_sharded=fully_sharded)), with_adapters(100, 28)
    whole, part = (sum(kernel.work.flops for kernel in gemms(model, batch, Shard(tensor=tensor)))
                   for tensor in (1, ways))
    repeated = 0 if fully_sharded else sum(MODULES[name][0] for name in ("q_proj", "k_proj", "v_proj", "gate_proj",
                                                                         "up_proj"))
    repeated += 0 if fully_sharded else 2 * 4096  # the outputs of o_proj and down_proj
    assert ways * part == whole + (ways - 1) * 32 * 2 * 128 * 16 * repeated


def test_only_fully_sharded_adapters_send():
    def sent(**more: Any) -> list[Collective]:
        model = adapted(LLAMA, evolve(SLOTS, **more))
        return [op.kernel for block in model.body(64, Shard(tensor=4)) for op in block.ops
                if isinstance(op.kernel, Collective) and "lora" in op.label]

    assert not sent()
    sizes = [(each.kind, each.bytes) for each in sent(fully_sharded=True)]
    assert sizes == [("all_gather", 3 * 64 * 16 * 4), ("all_reduce", 64 * 16 * 4), ("all_gather", 2 * 64 * 16 * 4),
                     ("all_reduce", 64 * 16 * 4)]


def test_without_adapters_in_the_batch_nothing_is_launched():
    model, batch = adapted(LLAMA, SLOTS), Batch.of((1, 100), (50, 0))
    assert launched(model, batch) == []
    plain = [(op.label, op.kernel) for block in LLAMA.body(51, Shard()) for op in block.ops]
    kept = [(op.label, op.kernel) for block in model.body(51, Shard()) for op in block.ops
            if not is_of_adapters(op.kernel)]
    assert kept == plain


def test_adapters_are_added_before_ranks_add_up_their_sums():
    labels = [op.label for op in adapted(LLAMA, SLOTS).body(64, Shard(tensor=2))[1].ops]
    place = labels.index("o_proj")
    assert labels[place:place + 5] == ["o_proj", "o_proj_lora_zero", "o_proj_lora_shrink", "o_proj_lora_expand",
                                       "o_proj_all_reduce"]


def test_slots_are_max_loras_x_max_lora_rank_x_the_sizes_of_targets():
    model = adapted(LLAMA, SLOTS)
    assert slots_of(model, Shard()) == 4 * 16 * 32 * WIDTHS * 2
    assert model.weights(Shard()) == LLAMA.weights(Shard()) + slots_of(model, Shard())
    assert model.parameters() == LLAMA.parameters()
    sharded = adapted(LLAMA, evolve(SLOTS, fully_sharded=True))
    assert 4 * slots_of(sharded, Shard(tensor=4)) == slots_of(model, Shard())
    assert sum(slots_of(model, Shard(stage=stage, stages=3)) for stage in range(3)) == slots_of(model, Shard())


def test_modules_are_those_of_the_checkpoint():
    model = adapted(LLAMA, SLOTS)
    assert module_names(model) == MODULES.keys()
    assert bytes_by_module(model) == {name: 32 * 2 * sum(sizes) for name, sizes in MODULES.items()}
    assert matrices(model) == 32 * 2 * 7


@pytest.mark.parametrize(("targets", "names"), [
    (("qkv_proj",), {"q_proj", "k_proj", "v_proj"}), (("q_proj",), {"q_proj", "k_proj", "v_proj"}),
    (("o_proj", "down_proj"), {"o_proj", "down_proj"})])
def test_targets_are_named_packed_or_as_in_the_checkpoint(targets, names):
    """A module that is packed with others is adapted with them, as in vLLM."""
    assert module_names(adapted(LLAMA, evolve(SLOTS, targets=targets))) == names


def test_a_target_that_the_model_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="lora_target_modules.*llama-3.1-8b has no 'w1'.*gate_up_proj"):
        adapted(LLAMA, evolve(SLOTS, targets=("w1",)))


def test_experts_are_refused_unless_they_are_no_targets():
    mixture = model_of("qwen3-30b-a3b")
    with pytest.raises(ConfigError, match=r"enable_lora.*qwen3-30b-a3b has experts.*lora_target_modules"):
        adapted(mixture, SLOTS)
    assert module_names(adapted(mixture, evolve(SLOTS, targets=("qkv_proj", "o_proj")))) == {
        "q_proj", "k_proj", "v_proj", "o_proj"}


def test_a_copy_has_the_bytes_of_an_adapters_own_rank_and_modules():
    model = adapted(LLAMA, SLOTS)
    loads = AdapterLoad("a", 8), AdapterLoad("b", 16, ("q_proj", "v_proj"))
    batch = evolve(with_adapters(4, 4), loads=loads)
    (copy,) = [kernel for label, kernel in launched(model, batch) if label == "lora_load"]
    some_modules = sum(sum(MODULES[name]) for name in ("q_proj", "v_proj"))
    assert copy.bytes == 32 * 2 * (8 * WIDTHS + 16 * some_modules)
    assert copy.seconds == copy.bytes / 50e9


def test_an_expand_of_queries_keys_and_values_knows_how_wide_each_is():
    qkv = next(kernel for label, kernel in launched(adapted(LLAMA, SLOTS), with_adapters(7, 7, 2))
               if label == "qkv_lora_expand")
    assert qkv == LoraGemm("expand", ((2, 1), (7, 2)), ((1024, 2), (4096, 1)), 16)


def test_every_model_can_have_adapters_beside_its_experts():
    """Their bytes are those of A and B of each product: its inputs once for each module in it, and its outputs."""
    for name in catalog.entries("models"):
        model = model_of(name)
        sizes = Sizes(model.decoder.sizes)
        products = [op for layer in model.decoder.layers for op in layer if isinstance(op, Product)
                    and not op.routed and len(op.tensors.operands) == 2]
        targets = {module for op in products for module in MODULES_OF.get(op.label, ("", (op.label,)))[1]}
        made = adapted(model, evolve(SLOTS, targets=tuple(targets)))
        parts = [(op, op.tensors.contractions[0]) for op in products]
        expected = sum(2 * (sizes.volume(part.depth) * len(MODULES_OF.get(op.label, ("", ("",)))[1])
                            + sizes.volume(part.columns)) for op, part in parts)
        assert sum(bytes_by_module(made).values()) == expected, name
