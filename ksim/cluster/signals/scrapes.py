"""The metrics of engines as somebody has them who scrapes them every so often."""

from collections.abc import Mapping, Sequence
from math import floor

from attrs import define, field

from ksim.cluster.signals.view import View
from ksim.engine.observer import RESOLUTION, Observer
from ksim.foundation.rng import stream
from ksim.specs.signals import SignalSettings

__all__ = ["Losses", "Scrapes"]

#: Draws that are made at once.
_DRAWS = 1024


@define(eq=False)
class Losses:
    """Which of the things called `name` are lost, one after the other: so large a `share` of them."""

    share: float
    seed: int
    name: str
    _lost: list[bool] = field(factory=list, init=False)
    _drawn: int = field(default=0, init=False)

    def lost(self, place: int) -> bool:
        """Whether the one at *place*, counted from 0, is lost; earlier ones are not asked for any more."""
        while place >= self._drawn:
            draws = stream(self.seed, f"{self.name}.{self._drawn // _DRAWS}").random(_DRAWS)
            self._lost, self._drawn = (draws < self.share).tolist(), self._drawn + _DRAWS
        return self._lost[place % _DRAWS]


@define(eq=False)
class Scrapes:
    """Scrapes engines at multiples of the interval, all at once, and shows in their `views` what has arrived.

    A scrape that is lost leaves what the one before it told; with an interval of 0, none is.  All that is `shown` now
    is noted in columns.
    """

    settings: SignalSettings
    views: Sequence[View]
    observers: Sequence[Observer]
    seed: int
    shown: Mapping[str, Sequence[float]] = field(factory=dict, init=False)
    _latest: int = field(default=-1, init=False)
    _losses: list[Losses] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._note()
        self._losses = [Losses(self.settings.loss, self.seed, f"scrapes.{view.number}") for view in self.views]

    def look(self, now: float) -> None:
        """Show what has arrived by *now*."""
        moment, interval = now - self.settings.delay, self.settings.scrape_interval
        if moment < 0:
            return
        if not interval:
            for view, observer in zip(self.views, self.observers, strict=True):
                _show(view, observer, moment)
            self._note()
            return
        latest = floor((moment + RESOLUTION) / interval)
        if latest > self._latest:
            self._show_scrapes(latest)

    def _show_scrapes(self, latest: int) -> None:
        """Show what scrapes up to the *latest* have told."""
        before, self._latest = self._latest, latest
        for place, (view, observer) in enumerate(zip(self.views, self.observers, strict=True)):
            scrape = latest
            if self.settings.loss:
                losses = self._losses[place]
                kept = [number for number in range(before + 1, latest + 1) if not losses.lost(number)]
                scrape = kept[-1] if kept else -1
            if scrape >= 0:
                _show(view, observer, scrape * self.settings.scrape_interval)
        self._note()

    def _note(self) -> None:
        """Note for the log what is shown from now on."""
        views = self.views
        self.shown = {"waiting": [view.waiting for view in views], "running": [view.running for view in views],
                      "kv_usage": [view.kv_usage for view in views], "scraped_s": [view.scraped_at for view in views]}


def _show(view: View, observer: Observer, moment: float) -> None:
    """Show in *view* what its engine's metrics were at *moment*."""
    readings, reading = observer.readings, None
    while readings and readings[0].time <= moment + RESOLUTION:
        reading = readings.popleft()
    view.scraped_at = moment
    if reading is not None:
        waiting = reading.waiting if reading.since is None else reading.waiting + observer.newcomers(reading.since)
        view.waiting, view.running, view.adapters = waiting, reading.running, reading.adapters
        view.kv_usage = reading.blocks / view.kv_blocks
