"""A mixture's grouped product: FLOP, bytes and loads, counted by hand."""

from ksim.compute.kernels.grouped_gemm import GroupedGemm


def test_work_counts_rows_and_the_experts_that_have_some():
    """3 experts of 8 have 5, 5 and 2 rows of 2048; each expert has 2048 x 1536 weights."""
    kernel = GroupedGemm(loads=((5, 2), (2, 1), (0, 5)), n=1536, k=2048, tokens=16)
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
