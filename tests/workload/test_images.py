"""Images of synthetic loads and of traces."""

from collections import Counter

import pytest

from ksim.flow.request import Image, Request
from ksim.foundation.config import Choice, structure
from ksim.foundation.errors import ConfigError, DataError
from ksim.workload.images import Images
from ksim.workload.replay import Replay

REQUESTS = [Request(number, float(number), 50, 5) for number in range(400)]


def test_numbers_lie_around_the_base_as_in_random_mm():
    """From the floor of n x (1 - r) to the ceiling of n x (1 + r), all equally likely."""
    images = Images(base_items_per_request=3, num_mm_items_range_ratio=0.5)
    counts = Counter(len(request.images) for request in images.attached(REQUESTS, 1))
    assert set(counts) == {1, 2, 3, 4, 5} and min(counts.values()) > 40


def test_sizes_are_drawn_by_their_shares_and_the_same_for_a_seed():
    images = Images(bucket_config={"(256, 512, 1)": 3.0, "(720, 1280, 1)": 1.0})
    drawn = [image for request in images.attached(REQUESTS, 1) for image in request.images]
    sizes = Counter((image.width, image.height) for image in drawn)
    assert set(sizes) == {(512, 256), (1280, 720)} and 0.65 < sizes[512, 256] / 400 < 0.85
    assert all(image.at == 50 for image in drawn)
    assert drawn == [image for request in images.attached(REQUESTS, 1) for image in request.images]
    assert len({image.name for image in drawn}) == 400


def test_a_pool_has_so_many_images_each_of_one_size():
    drawn = [image for request in Images(pool=5).attached(REQUESTS, 1) for image in request.images]
    assert len({image.name for image in drawn}) == 5
    assert len({(image.name, image.width) for image in drawn}) == 5


def test_later_turns_have_the_images_of_earlier_ones_in_their_places():
    turns = [Request(0, 0.0, 50, 5, session="a"), Request(1, 0.0, 80, 5, session="a"), Request(2, 1.0, 9, 5)]
    first, second, alone = Images().attached(turns, 0)
    assert [image.at for image in second.images] == [50, 80] and second.images[0] == first.images[0]
    assert [image.at for image in alone.images] == [9]


@pytest.mark.parametrize("buckets", [{"(1, 2, 3)": 1.0}, {"(0, 2, 1)": 1.0}, {"x": 1.0}, {"(2, 2, 1)": -1.0},
                                     {"(2, 2, 1)": 0.0}, {}])
def test_buckets_that_make_no_sense_are_refused(buckets):
    with pytest.raises(ConfigError, match="bucket_config"):
        structure(Images, {"bucket_config": buckets}, "images")


def replayed(tmp_path, text, **options):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return [request.images for request in Replay(path, **options).requests(0)]


def test_a_trace_says_sizes_places_and_names(tmp_path):
    assert replayed(tmp_path, "arrival,prompt,output,images\n0,90,5,640x480|1280x720@40#logo\n1,20,5,\n") == [
        (Image(1280, 720, 40, "logo"), Image(640, 480, 90)), ()]
    for wrong in ("640", "640x0", "ax3", "1x2@", "99999x99999"):
        with pytest.raises(DataError, match="images has"):
            replayed(tmp_path, f"arrival,prompt,output,images\n0,90,5,{wrong}\n")


def test_images_of_azure_have_one_size_and_are_counted_already(tmp_path):
    text = ("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.269Z,2,770,491\n"
            "2024-10-15T12:00:05.819Z,0,949,126\n")
    assert replayed(tmp_path, text) == [(), ()]
    assert replayed(tmp_path, text, format=Choice("azure", {"image": "800x600"})) == [
        (Image(800, 600, 770, counted=True),) * 2, ()]
