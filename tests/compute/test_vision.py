"""Vision encoders: sizes to tokens as published, parameters as published, FLOP by their parameters."""

from functools import cache
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.model import Model
from ksim.compute.notation.product import Product
from ksim.compute.sizes import Sizes
from ksim.compute.vision.processors import FixedProcessor, MosaicProcessor, PixelProcessor, TileProcessor
from ksim.compute.vision.towers import PatchAttentionLayer
from ksim.flow.batch import Batch, Batches, encoder_batch
from ksim.flow.request import Patches
from ksim.foundation.errors import ConfigError
from ksim.scenario.models import model_of
from ksim.specs.shard import Shard
from tests.properties import examples

QWEN2_5 = PixelProcessor(56 * 56, 12_845_056, 14, 2, most_frames=14)
QWEN3 = PixelProcessor(65_536, 16_777_216, 16, 2, video_pixels=25_165_824 // 2)
INTERN = TileProcessor(1, 12, True, True, side=448, rows=32, embeds=256)
LLAMA = MosaicProcessor()
GEMMA = FixedProcessor()
PROCESSORS = (QWEN2_5, QWEN3, INTERN, LLAMA, GEMMA)
SIDES = st.integers(32, 4096)
#: Models of the catalogue that see, and how many parameters their cards say that checkpoints have.
PUBLISHED = {"qwen2.5-vl-7b": 8_292_166_656, "qwen3-vl-8b": 8_767_123_696, "internvl3-8b": 7_944_373_760,
             "qwen3-vl-30b-a3b": 31_070_754_032, "gemma-3-4b": 4_300_079_472, "gemma-3-27b": 27_432_406_640,
             "llama-4-scout": 108_641_793_536, "llama-4-maverick": 401_583_781_376}


@cache
def model(name: str) -> Model:
    return model_of(name)


def tower(name: str) -> Model:
    encoder = model(name).decoder.encoder
    assert encoder and encoder.images
    return Model("vision", encoder)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_with_the_encoder_are_those_published(name):
    assert model(name).parameters() + tower(name).parameters() == PUBLISHED[name]


# Sizes, as Qwen's, InternVL's, Llama 4's and Gemma's processors make of them.


def test_qwen_rounds_sides_to_whole_tokens():
    """The README of Qwen2-VL: 28 x 28 pixels are a token, and 1 to 16,384 tokens an image, 4 at least."""
    assert QWEN2_5.patches(280, 560) == Patches(1, 40, 20, 200)
    assert QWEN2_5.tokens(1, 1) == 4
    assert QWEN2_5.tokens(1920, 1080) == 69 * 39
    assert QWEN2_5.tokens(10_000, 10_000) == 127 * 127  # the quotient of the sides falls just short of 128
    assert QWEN3.tokens(1024, 1024) == 32 * 32
    assert QWEN3.tokens(256, 256) == 64


def test_qwen_with_the_most_pixels_of_its_cookbooks():
    """256 to 1280 tokens, as the cards suggest: min_pixels = 256 x 28 x 28, max_pixels = 1280 x 28 x 28."""
    few = PixelProcessor(256 * 28 * 28, 1280 * 28 * 28, 14, 2)
    assert 256 <= few.tokens(100, 100) <= 1280
    assert few.tokens(4000, 3000) <= 1280


def test_internvl_cuts_tiles_of_448_pixels_and_adds_a_thumbnail():
    assert INTERN.patches(448, 448) == Patches(1, 32, 32, 256, 1)
    assert INTERN.patches(896, 448).embeds == 3 * 256  # two tiles and a thumbnail
    assert INTERN.patches(1344, 896).embeds == 7 * 256
    assert INTERN.tokens(448, 448) == 258


def test_llama_4_takes_the_canvas_that_magnifies_least():
    """vLLM's tests: a square of 336 is one tile; several have the whole image beside them."""
    assert LLAMA.patches(336, 336) == Patches(1, 24, 24, 144, 1)
    assert LLAMA.tokens(336, 336) == 144 + 3
    assert LLAMA.patches(672, 336).tiles == 3
    assert LLAMA.patches(672, 672).tiles == 5
    assert LLAMA.tokens(672, 672) == 5 * 144 + 4 + 3
    small = MosaicProcessor(max_patches=3, side=224)  # the example of get_best_fit: 448 x 224 for 300 x 200
    assert small.patches(300, 200).tiles == 3


def test_gemma_3_makes_256_tokens_of_any_image():
    assert GEMMA.patches(4000, 10).embeds == 256
    assert GEMMA.patches(10, 10).tokens == 4096
    assert GEMMA.tokens(896, 896) == 260


def test_an_image_that_is_too_narrow_is_refused():
    with pytest.raises(ConfigError, match="200 times"):
        QWEN3.patches(4020, 20)


def test_budgets_of_videos_are_those_that_vllm_logs():
    """vLLM logs an encoder cache of 114,688 tokens for Qwen2.5-VL at its full length."""
    assert QWEN2_5.video_embeds(128_000) == 114_688
    assert QWEN2_5.video_embeds(32_768) == 32_768
    assert QWEN3.video_embeds(262_144) == 12_288
    assert LLAMA.video_embeds(10**6) == GEMMA.video_embeds(10**6) == 0


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda each: type(each).__name__)
@given(width=SIDES, height=SIDES)
@examples(30)
def test_no_image_has_more_tokens_than_the_largest(processor, width, height):
    most = processor.patches(*processor.largest())
    patches = processor.patches(width, height)
    assert 0 < patches.embeds <= most.embeds
    assert processor.tokens(width, height) >= patches.embeds
    assert patches.tokens >= patches.embeds


@given(width=SIDES, height=SIDES)
@examples(60)
def test_resized_sides_are_whole_tokens_within_the_limits(width, height):
    patches = QWEN2_5.patches(width, height)
    assert patches.rows % 2 == patches.columns % 2 == 0
    assert patches.embeds * 4 == patches.tokens
    assert patches.tokens * 14 * 14 <= QWEN2_5.max_pixels


# Attention and work.


@given(rows=st.integers(1, 60), columns=st.integers(1, 60), window=st.integers(0, 20), tiles=st.integers(1, 3))
@examples(60)
def test_windows_hold_every_patch_once(rows, columns, window, tiles):
    sequences = [*Patches(tiles, rows, columns, 1).sequences(window)]
    assert sum(count * length for count, length in sequences) == tiles * rows * columns
    if window:
        squares = ceil(rows / window) * ceil(columns / window)
        assert sum(count for count, _ in sequences) == tiles * squares
        assert max(length for _, length in sequences) <= window**2


def batch_of(*images: Patches) -> Batch:
    return encoder_batch(images)


def test_a_sweep_counts_what_each_batch_counts():
    layer = PatchAttentionLayer(16, 16, 72, 8)
    batches = [batch_of(Patches(1, 20, 30, 150)), batch_of(Patches(2, 8, 8, 32), Patches(1, 16, 9, 36))]
    sweep = layer.sweep(Batches.of(batches))
    assert [sweep[row] for row in range(2)] == [layer.over(batch) for batch in batches]


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_encoder_takes_two_flop_for_each_weight_and_patch_beside_attention(name):
    """Products over patches, and products over the tokens that they are merged into."""
    whole, images = tower(name), (Patches(2, 32, 32, 512), Patches(1, 16, 64, 256))
    batch, sizes = batch_of(*images), Sizes(tower(name).decoder.sizes)
    decoder = whole.decoder
    rows = [(batch.tokens, operation) for layer in (decoder.embedding, *decoder.layers) for operation in layer]
    rows += [(batch.logits, operation) for operation in decoder.head]
    products = sum(2 * count * (operation.parameters(sizes) - operation.biases(sizes, Shard()))
                   for count, operation in rows if isinstance(operation, Product))
    kernels = [*whole.graph(batch.tokens, batch.logits, Shard()).over(batch)]
    assert sum(kernel.work.flops for _, kernel in kernels if kernel.family == "gemm") == products
    attention = sum(kernel.work.flops for _, kernel in kernels if kernel.family == "attention")
    windows = [operation.window for layer in decoder.layers for operation in layer if hasattr(operation, "window")]
    pairs = sum(count * length**2 for window in windows for image in images
                for count, length in image.sequences(window))
    assert attention == 4 * pairs * decoder.sizes["m"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_two_ranks_share_an_encoder(name):
    whole, half = tower(name).weights(Shard()), tower(name).weights(Shard(tensor=2))
    assert whole == 2 * tower(name).parameters()
    assert whole / 2 < half < 0.7 * whole
