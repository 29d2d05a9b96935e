"""Images from a workload to the engine: prompts, prices, memory, refusals."""

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim import Scenario, simulate
from ksim.compute.vision.processors import PixelProcessor, TileProcessor
from ksim.features.images import prepare, vision_of
from ksim.flow.batch import Batch, encoder_batch
from ksim.flow.request import Image, Patches, PlacedImage, Request
from ksim.foundation.errors import ConfigError, KsimError
from ksim.scenario.defaults import Deployment
from ksim.specs.settings import EngineSettings
from tests.models import model_of
from tests.properties import examples

QWEN = PixelProcessor(65_536, 16_777_216, 16, 2, video_pixels=12_582_912)
INTERN = TileProcessor(1, 12, True, True, side=448, rows=32, embeds=256)
LOAD = {"arrivals": {"process": "poisson", "rate": 20.0}, "prompt": {"kind": "fixed", "value": 64},
        "output": {"kind": "fixed", "value": 8}, "count": 6}


def scenario(model: str = "qwen3-vl-8b", images: dict[str, Any] | None = None, **serve: Any) -> Scenario:
    load = LOAD | ({"images": images} if images is not None else {})
    return Scenario.of({"model": model, "gpu": "h200", "serve": serve, "workload": {"synthetic": load}})


# Prompts.

IMAGES = st.lists(st.builds(Image, st.integers(64, 900), st.integers(64, 900), st.integers(0, 120),
                            st.sampled_from(["", "a", "b"])), max_size=3)


@given(images=IMAGES, named=st.booleans())
@examples(60)
def test_an_image_takes_its_place_in_the_prompt(images, named):
    chunks = tuple(f"t{place}" for place in range(7)) if named else ()
    request = Request(3, 0.0, 100, 10, chunks, 16, images=tuple(images))
    for processor in (QWEN, INTERN):
        seen = prepare(request, processor)
        added = sum(processor.tokens(image.width, image.height) + processor.around for image in images)
        assert seen.prompt == 100 + added and seen.output == 10
        assert seen.named <= seen.prompt + seen.output
        placed = [image for image in seen.images if isinstance(image, PlacedImage)]
        ends = [0, *(image.end for image in placed)]
        assert len(placed) == len(images)
        assert all(image.start >= end for image, end in zip(placed, ends, strict=False))
        assert all(image.end <= seen.prompt for image in placed)


def test_prompts_that_begin_alike_have_names_that_begin_alike():
    """As far as texts and images are the same: vLLM's block hashes have the images' hashes in them."""
    def names(*images: Image) -> list[Any]:
        return list(prepare(Request(0, 0.0, 96, 1, tuple("abcdef"), 16, images=images), QWEN).chunks)

    plain, early, late = names(), names(Image(256, 256, 32, "x")), names(Image(256, 256, 64, "x"))
    other = names(Image(256, 256, 32, "y"))
    assert plain == list("abcdef")
    assert early[:2] == late[:2] == ["a", "b"] and late[2:4] == ["c", "d"] != early[2:4]
    assert early[:2] == other[:2] and not {*early[2:5]} & {*other[2:5]}
    assert early == names(Image(256, 256, 32, "x"))
    assert len(early) == (96 + 64 + 2) // 16


# Prices and memory.


def timer(**serve: Any) -> Any:
    return Deployment.of(scenario(**serve)).timers()[0]


def test_a_batch_without_images_costs_what_the_text_model_costs():
    batch = Batch.of((1, 100), (64, 0))
    assert timer().step_cost(batch).costs.table.tolist() == (
        timer(language_model_only=True).step_cost(batch).costs.table.tolist())


def test_images_cost_beside_the_text():
    batch, image = Batch.of((1, 100), (64, 0)), Patches(1, 32, 32, 256)
    text, one, two = (timer().step_cost(Batch(batch.contexts, batch.chunks, batch.samples, batch.tokens,
                                              images=(image,) * count)).flops for count in range(3))
    vision = vision_of(Deployment.of(scenario()).model, Deployment.of(scenario()).serve)
    assert two - one == pytest.approx(one - text, rel=1e-3)
    assert one - text > 2 * 1024 * 0.8 * vision.model.parameters()


def test_ranks_share_weights_or_images():
    image = Patches(1, 32, 32, 256)
    seconds = {}
    for mode in ("weights", "data"):
        deployment = Deployment.of(scenario(tensor_parallel_size=2, mm_encoder_tp_mode=mode))
        batch = Batch.of((64, 0))
        with_images = Batch(batch.contexts, batch.chunks, batch.samples, batch.tokens, images=(image,) * 4)
        timers = deployment.timers()[0]
        seconds[mode] = timers.step_cost(with_images).seconds - timers.step_cost(batch).seconds
        vision = vision_of(deployment.model, deployment.serve)
        assert (vision.weights == 2 * vision.model.parameters()) == (mode == "data")
    assert seconds["data"] != seconds["weights"]


def test_an_encoder_takes_room_from_the_cache():
    without, small, all_of_it = (Deployment.of(scenario("qwen2.5-vl-7b", **serve)).kv_blocks for serve in (
        {"language_model_only": True}, {"limit_mm_per_prompt": {"video": 0}}, {}))
    assert without > small > all_of_it
    room = (without - small) * 16 * 28 * 2 * 4 * 128 * 2
    assert room > 2 * 676_550_144


@pytest.mark.parametrize(("model", "none"), [
    ("gemma-3-4b", {"image": 0}), ("qwen2.5-vl-7b", {"image": 0, "video": 0})])
def test_an_encoder_to_which_nothing_may_come_is_not_there(model, none):
    without, blind = (Deployment.of(scenario(model, **serve)).kv_blocks for serve in (
        {"limit_mm_per_prompt": none}, {"language_model_only": True}))
    assert without == blind


def test_budgets_hold_the_largest_item():
    def limits(model: str, **serve: Any) -> Any:
        deployment = Deployment.of(scenario(model, **serve))
        return vision_of(deployment.model, deployment.serve).limits

    assert limits("qwen2.5-vl-7b").budget == 114_688  # vLLM's own, for the longest video
    assert limits("qwen2.5-vl-7b", limit_mm_per_prompt={"video": 0}).budget == 16_384
    assert limits("qwen2.5-vl-7b", limit_mm_per_prompt={"video": 0, "image": 2},
                  mm_processor_kwargs={"max_pixels": 1_003_520}).budget == 8192
    assert limits("internvl3-8b", limit_mm_per_prompt={"video": 0}).budget == 8192


# Runs.


def test_images_lengthen_prompts_and_are_encoded_once():
    result = simulate(scenario(images={"bucket_config": {"(256, 256, 1)": 1.0}}))
    assert result.summary["total_input_tokens"] == 6 * (64 + 64 + 2)
    assert result.summary["images"] == 6
    assert result.summary["encoder_tokens"] == 6 * 64


def test_equal_images_share_embeddings_and_prefixes():
    result = simulate(scenario(images={"base_items_per_request": 2, "pool": 1}))
    assert result.summary["images"] < 12


def test_a_load_without_images_runs_as_without_an_encoder():
    seeing, blind = simulate(scenario()), simulate(scenario(language_model_only=True))
    assert seeing.summary["mean_ttft_ms"] == blind.summary["mean_ttft_ms"]
    assert seeing.summary["total_token_throughput"] == blind.summary["total_token_throughput"]


@pytest.mark.parametrize("serve", [{}, {"max_num_seqs": 2, "max_num_batched_tokens": 1024}])
def test_an_engine_that_goes_ahead_of_the_clock_encodes_as_one_that_does_not(serve):
    load = scenario(images={"base_items_per_request": 2, "num_mm_items_range_ratio": 1.0, "pool": 4},
                    limit_mm_per_prompt={"video": 0}, **serve)
    ahead, stepping = (simulate(evolve(Deployment.of(load), skips=skips)).summary for skips in (True, False))
    assert ahead == pytest.approx(stepping, nan_ok=True)


@pytest.mark.parametrize(("changes", "message"), [
    ({"model": "qwen3-8b"}, "the model takes none"),
    ({"language_model_only": True}, "the model takes none"),
    ({"limit_mm_per_prompt": {"image": 1}}, "at most 1 image(s) may be provided in one prompt"),
])
def test_images_that_cannot_be_served_are_refused(changes, message):
    result = simulate(scenario(images={"base_items_per_request": 2}, **changes))
    assert message in result.refusals.commonest()


@pytest.mark.parametrize(("changes", "message"), [
    ({"model": "qwen3-8b", "limit_mm_per_prompt": {"image": 1}}, "qwen3-8b takes no images"),
    ({"mm_processor_kwargs": {"max_dynamic_patch": 2}}, "has no such setting; it has min_pixels, max_pixels"),
    ({"mm_processor_kwargs": {"min_pixels": 2**26}}, "is more than max_pixels"),
    ({"disable_chunked_mm_input": True}, "an item of 16384 tokens may come"),
    ({"model": "qwen2.5-vl-7b", "tensor_parallel_size": 7}, "does not divide"),
])
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises((ConfigError, KsimError), match="(?s).*") as caught:
        simulate(scenario(images={}, **changes))
    assert message in str(caught.value)


def test_largest_items_are_those_placed():
    deployment = Deployment.of(scenario())
    vision = vision_of(deployment.model, deployment.serve)
    placed = prepare(Request(0, 0.0, 5, 1, images=(Image(*vision.processor.largest()),)), vision.processor).images[0]
    assert isinstance(placed, PlacedImage) and placed.embeds == vision.most_embeds


def test_internvit_s_heads_are_whole_on_ranks_that_do_not_divide_them():
    """vLLM's intern_vit.py: 25 heads stay whole on each of two ranks, which share the MLPs; nothing is exchanged."""
    whole = vision_of(model_of("OpenGVLab/InternVL3_5-38B"), EngineSettings(tensor_parallel_size=2))
    assert whole
    layer = [op.label for op in whole.model.decoder.layers[0]]
    assert "query_gather" not in layer
    mlp = 45 * 2 * (2 * 3200 * 12800 + 12800)
    assert whole.weights == 2 * whole.model.parameters() - mlp / 2
    launched = [label for label, _ in whole.model.graph(1025, 256, whole.shard).over(encoder_batch([whole.largest]))]
    assert {label for label in launched if "all_reduce" in label} == {"encoder.down_all_reduce"}
