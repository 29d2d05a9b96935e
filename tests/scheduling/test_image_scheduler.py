"""Schedules with images: recorded ones of vLLM 0.33, and what holds of all."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve, field

from ksim.flow.request import Image, Patches, PlacedImage, Request
from ksim.foundation import catalog
from ksim.foundation.config import structure
from ksim.scheduling.engine_loop import EngineLoop, ScheduleForecast
from ksim.scheduling.image_scheduler import Encoding, ImageScheduler
from ksim.scheduling.job import EncoderLimits, Schedule
from ksim.validation.cases import RecordedCase
from ksim.validation.replay import ScheduleReplay

RECORDED: list[dict[str, Any]] = json.loads(gzip.decompress(
    (Path(__file__).parents[1] / "golden" / "images" / "images.json.gz").read_bytes()))


@define(eq=False)
class ImageReplay(ScheduleReplay):
    """The replay of a case whose requests have images."""

    recorded: dict[str, Any] = field(factory=dict, kw_only=True)
    encoding: Encoding = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        case, encoder = self.case, self.recorded["encoder"]
        for job, request in zip(self._jobs, case.requests, strict=True):
            images = [PlacedImage(1, 1, start, name, start=start, tokens=tokens, lead=lead,
                                  patches=Patches(1, embeds, 4, embeds))
                      for start, tokens, name, lead, embeds in self.recorded["images"].get(request.id, ())]
            job.request = evolve(job.request, images=images)
        limits = EncoderLimits(encoder["budget"], encoder["cache"], chunked=encoder["chunked"])
        policy = catalog.find("scheduling.policies", case.settings.policy)()
        self.encoding = Encoding(limits)
        self._scheduler = ImageScheduler(case.settings, policy, self._scheduler.cache, encoding=self.encoding)
        self._forecast, self._loop = ScheduleForecast(self._scheduler), EngineLoop(self._scheduler)

    def _told(self, schedule: Schedule) -> dict[str, Any]:
        encoding = self.encoding
        scheduled = encoding.scheduled if self._scheduler.latest.images else {}
        return super()._told(schedule) | {
            "enc": [[self._places[job], [list(job.images).index(image) for image in images]]
                    for job, images in scheduled.items()],
            "ef": [encoding.cache.free, encoding.cache.reclaimable]}


def replay(recorded: dict[str, Any], **options: Any) -> ImageReplay:
    return ImageReplay(structure(RecordedCase, recorded["case"], "images"), recorded=recorded, **options)


@pytest.mark.parametrize("repeats", [True, False])
def test_schedules_are_those_of_vllm(repeats):
    for recorded in RECORDED:
        played = replay(recorded, repeats=repeats)
        for row, expected in zip(played.steps(), recorded["expected"]["steps"], strict=True):
            assert {key: row.get(key, []) for key in ("sched", "pre", "enc", "ef", "free", "q")} == (
                {key: expected.get(key, []) for key in ("sched", "pre", "enc", "ef", "free", "q")}), (
                recorded["case"]["name"], row["s"])
        assert played.end == recorded["expected"]["end"]


def test_the_encoders_budget_and_cache_are_never_exceeded():
    for recorded in RECORDED:
        played, encoder = replay(recorded), recorded["encoder"]
        for row in played.steps():
            embeds = [sum(played._jobs[job].images[place].embeds for place in places) for job, places in row["enc"]]
            assert sum(embeds) <= encoder["budget"]
            assert 0 <= row["ef"][0] <= row["ef"][1] <= encoder["cache"]


def test_an_image_is_encoded_once_where_all_embeddings_stay():
    """And not again after a preemption."""
    for recorded in RECORDED:
        if recorded["expected"]["end"] != "done":
            continue
        large = recorded | {"encoder": recorded["encoder"] | {"cache": 10**6}}
        played, encoded = replay(large), Counter[str]()
        for row in played.steps():
            encoded.update(played._jobs[job].images[place].name for job, places in row["enc"] for place in places)
        assert set(encoded.values()) <= {1}


def test_an_engine_without_images_schedules_as_a_plain_one():
    for recorded in RECORDED[:12]:
        plain = {key: recorded["case"][key] for key in recorded["case"]}
        case = structure(RecordedCase, plain, "plain")
        seeing = ImageReplay(case, recorded=recorded | {"images": {}})
        rows = [{key: row[key] for key in ("sched", "free", "q")} for row in seeing.steps()]
        assert rows == [{key: row[key] for key in ("sched", "free", "q")} for row in ScheduleReplay(case).steps()]


def test_what_can_never_be_encoded_is_refused():
    request = Request(0, 0.0, 100, 1, images=(PlacedImage(9, 9, tokens=50, patches=Patches(1, 50, 4, 50)),) * 2)
    assert Encoding(EncoderLimits(64, 64)).refusal(request) == ""
    assert "at most 1 image(s)" in Encoding(EncoderLimits(64, 64, images=1)).refusal(request)
    assert "exceeds the encoder cache size of 40" in Encoding(EncoderLimits(40, 40)).refusal(request)
    narrow = evolve(request, images=(Image(9, 9),))
    assert "too narrow" in Encoding(EncoderLimits(64, 64)).refusal(narrow)
