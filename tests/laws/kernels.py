"""Kernels of every family for properties."""

from typing import Any, get_type_hints

from attrs import fields
from hypothesis import strategies as st

from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.basic import LoraGemm
from ksim.compute.kernels.mla import BlockSparseLayer, CompressedLayer, IndexScores, LatentAttention, SparseLatentLayer
from ksim.compute.kernels.states import CausalConv, DeltaRule, SelectiveScan, StateSpace
from ksim.flow.batch import Batch
from ksim.foundation import catalog
from ksim.foundation.units import DType

NAMES = catalog.names("compute.kernels")
Loads = tuple[tuple[int, float], ...]
#: Values of a field by its type: all that a new family of independent fields needs.
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(1, 20_000),
    float: st.floats(0, 1e12),
    str: st.just("any"),
    DType: st.sampled_from([DType.FP8, DType.BF16]),
    int | None: st.none() | st.integers(1, 20_000),
    Loads: st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 64)), min_size=1, max_size=4).map(tuple),
}
sequences = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 9000)), min_size=1, max_size=8)
heads = st.tuples(st.integers(1, 16), st.integers(1, 16), st.sampled_from([64, 128, 256]))
windows = st.sampled_from([0, 1, 17, 512, 4096])
parts = st.sampled_from(["prompts", "decodes"])
#: Families whose fields depend on each other.
DEPENDENT: dict[str, st.SearchStrategy[Kernel]] = {
    "attention": st.builds(
        lambda pairs, of, window, cache: AttentionLayer(of[0] * of[1], of[0], of[2], window, cache).over(
            Batch.of(*pairs)),
        sequences, heads, windows, VALUES[DType]),
    "latent_attention": st.builds(
        lambda form, pairs, heads, cache: LatentAttention(form, heads, 128, 64, 128, 512, cache).counted(
            Batch.of(*pairs)),
        st.sampled_from(["expanded", "absorbed"]), sequences, st.integers(1, 128), VALUES[DType]).filter(bool),
    "sparse_latent_attention": st.builds(
        lambda pairs, heads, chosen, cache: SparseLatentLayer(heads, 512, 64, chosen, cache).over(Batch.of(*pairs)),
        sequences, st.integers(1, 128), st.sampled_from([1, 64, 2048]), VALUES[DType]),
    "compressed_attention": st.builds(
        lambda pairs, heads, stride, chosen, cache: CompressedLayer(heads, 512, 128, stride, chosen, cache).over(
            Batch.of(*pairs)),
        sequences, st.integers(1, 128), st.sampled_from([0, 4, 128]), st.sampled_from([0, 1, 512]), VALUES[DType]),
    "block_sparse_attention": st.builds(
        lambda pairs, of, chosen, cache: BlockSparseLayer(of[0] * of[1], of[0], of[2], chosen, cache).over(
            Batch.of(*pairs)),
        sequences, heads, st.sampled_from([128, 2048]), VALUES[DType]),
    "index_scores": st.builds(
        lambda part, pairs, heads: IndexScores(part, heads, 128).counted(Batch.of(*pairs)),
        parts, sequences, st.integers(1, 64)).filter(bool),
    "causal_conv": st.builds(
        lambda part, pairs, channels: CausalConv(part, channels, 4).counted(Batch.of(*pairs)),
        parts, sequences, st.integers(1, 20_000)).filter(bool),
    "delta_rule": st.builds(
        lambda part, pairs, keys, group, state, by_channel: DeltaRule(
            part, keys * group, keys, 128, state, by_channel).counted(Batch.of(*pairs)),
        parts, sequences, st.integers(1, 16), st.integers(1, 4), VALUES[DType], st.booleans()).filter(bool),
    "state_space": st.builds(
        lambda part, pairs, groups, of, state: StateSpace(part, groups * of, groups, 64, 128, 256, state).counted(
            Batch.of(*pairs)),
        parts, sequences, st.integers(1, 8), st.integers(1, 16), VALUES[DType]).filter(bool),
    "selective_scan": st.builds(
        lambda part, pairs, channels, state: SelectiveScan(part, channels, 16, state).counted(Batch.of(*pairs)),
        parts, sequences, st.integers(1, 20_000), VALUES[DType]).filter(bool),
    "lora_gemm": st.builds(LoraGemm, st.sampled_from(["shrink", "expand"]), VALUES[Loads],
                      st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 3)), min_size=1, max_size=2).map(tuple),
                      st.sampled_from([1, 8, 16, 64, 512])),
}


def shapes(name: str) -> st.SearchStrategy[Kernel]:
    if name in DEPENDENT:
        return DEPENDENT[name]
    family = catalog.find("compute.kernels", name)
    hints = get_type_hints(family)
    return st.builds(family, **{field.name: VALUES[hints[field.name]] for field in fields(family)})
