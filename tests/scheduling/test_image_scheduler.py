"""Schedules with images: recorded ones of vLLM 0.33, and what holds of all."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve, field

from ksim.flow.images import Patches, PlacedImage
from ksim.foundation import catalog
from ksim.foundation.config import structure
from ksim.scheduling.engine_loop import EngineLoop
from ksim.scheduling.image_scheduler import EncoderLimits, Encoding, ImageScheduler
from ksim.scheduling.schedule import Schedule
from ksim.scheduling.schedule_forecast import ScheduleForecast
from ksim.validation.cases import Case
from ksim.validation.replay import Replay

RECORDED: list[dict[str, Any]] = json.loads(gzip.decompress(
    (Path(__file__).parents[1] / "golden" / "images" / "images.json.gz").read_bytes()))


@define(eq=False)
class ImageReplay(Replay):
    """The replay of a case whose requests have images."""

    recorded: dict[str, Any] = field(factory=dict, kw_only=True)

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
        self._scheduler = ImageScheduler(case.settings, policy, self._scheduler.cache, encoding=Encoding(limits))
        self._forecast, self._loop = ScheduleForecast(self._scheduler), EngineLoop(self._scheduler)

    def _told(self, schedule: Schedule) -> dict[str, Any]:
        encoding = self._scheduler.encoding
        scheduled = encoding.scheduled if self._scheduler.latest.images else {}
        return super()._told(schedule) | {
            "enc": [[self._places[job], [list(job.images).index(image) for image in images]]
                    for job, images in scheduled.items()],
            "ef": [encoding.cache.free, encoding.cache.reclaimable]}


def replay(recorded: dict[str, Any], **options: Any) -> ImageReplay:
    return ImageReplay(structure(Case, recorded["case"], "images"), recorded=recorded, **options)


@pytest.mark.parametrize("repeats", [True, False])
def test_schedules_are_those_of_vllm(repeats):
    for recorded in RECORDED:
        played = replay(recorded, repeats=repeats)
        for row, expected in zip(played.steps(), recorded["expected"]["steps"], strict=True):
            assert {key: row.get(key, []) for key in ("sched", "pre", "enc", "ef", "free", "q")} == (
                {key: expected.get(key, []) for key in ("sched", "pre", "enc", "ef", "free", "q")}), (
                recorded["case"]["name"], row["s"])
        assert played.end == recorded["expected"]["end"]
