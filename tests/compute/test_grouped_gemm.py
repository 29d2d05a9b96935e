"""A mixture's grouped product: FLOP, bytes and loads, counted by hand."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.expert_rows import Mixture, average_rank, expert_rows
from ksim.compute.kernels.basic import EXPERT_TILES, GroupedGemm


def test_work_counts_rows_and_the_experts_that_have_some():
    """3 experts of 8 have 5, 5 and 2 rows of 2048; each expert has 2048 x 1536 weights."""
    kernel = GroupedGemm(expert_rows=((5, 2), (2, 1), (0, 5)), n=1536, k=2048, tokens=16)
    assert kernel.rows == 12
    assert kernel.active == 3
    assert kernel.work.flops == 75_497_472  # 2 x 12 x 1536 x 2048
    assert kernel.work.reads == 18_923_520  # 3 x 2048 x 1536 weights and 12 x 2048 activations, 2 bytes each
    assert kernel.work.writes == 36_864  # 12 x 1536 x 2


def test_tokens_that_go_to_several_experts_are_read_once():
    every_row = GroupedGemm(((8, 4),), n=1536, k=2048, tokens=16).work
    shared = GroupedGemm(((8, 4),), n=1536, k=2048, tokens=16, inputs=16).work
    assert every_row.reads - shared.reads == 16 * 2048 * 2
    assert every_row.flops == shared.flops


def test_each_expert_fills_tiles_of_its_own():
    """Loads of 65 and 1 in tiles of 64 rows: 2 + 1 rows of tiles, each 24 wide."""
    kernel = GroupedGemm(((65, 1), (1, 1)), n=1536, k=2048, tokens=16)
    launch = next(x for x in kernel.launches(132) if x.name == "64x128")
    assert launch.blocks == (2 + 1) * 12
    assert launch.flops == 2 * 64 * 128 * 2048


@given(st.integers(1, 400), st.integers(1, 8), st.integers(8, 256), st.integers(1, 5000), st.integers(1, 5000))
def test_each_active_expert_has_a_tile_of_its_own_however_few_its_rows(tokens, top_k, experts, n, k):
    """So where a tile holds all rows of any expert, arithmetic grows with the experts and not with the rows."""
    kernel = GroupedGemm(expert_rows(tokens, top_k, experts), n, k, tokens)
    for (height, width), launch in zip(EXPERT_TILES, kernel.launches(132), strict=True):
        assert launch.blocks >= kernel.active * ceil(n / width)
        assert launch.blocks * launch.flops >= max(kernel.work.flops, 2 * height * kernel.active * n * k)
        if tokens <= height:
            assert launch.blocks == kernel.active * ceil(n / width)


def test_a_single_token_pads_its_experts_tiles_as_16_do():
    """8 experts of one row each take 16 rows each: a sixteenth of the arithmetic is of use."""
    alone, sixteen = (GroupedGemm(((rows, 8),), n=768, k=2048, tokens=rows).launches(132)[-1] for rows in (1, 16))
    assert alone == sixteen
    assert alone.blocks * alone.flops == 16 * GroupedGemm(((1, 8),), n=768, k=2048, tokens=1).work.flops


def test_an_average_rank_has_fractions_of_experts():
    """A token's two experts are on two of four ranks: on average, half an expert is read and half a row computed."""
    work = GroupedGemm(average_rank(1, Mixture(2, 8, ranks=4)), n=1536, k=2048, tokens=1).work
    assert work.flops == 0.5 * 2 * 1536 * 2048
    assert work.reads == 0.5 * (1536 * 2048 + 2048) * 2
