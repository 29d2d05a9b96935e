"""Figures of fleets whose sizes change while they serve."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import frozen

from ksim.results.history import History
from ksim.results.metrics import good
from ksim.results.numbers import LatencyTargets
from ksim.results.scaling import FleetSizes, windows
from ksim.results.series import Series, power
from ksim.results.steps import Bools, Floats, per_second
from ksim.views.charts import BLUE, GREEN, GREY, INK, ORANGE, PALETTE, PURPLE, RED, Axis, Panel, Polyline
from ksim.views.figures import Picture
from ksim.views.figures.kernels import SECONDS
from ksim.views.wording import DOWN, number, percent

#: Points of curves, and bins for requests, of which there are far fewer than steps.
_POINTS, _REQUEST_BINS = 240, 60
#: What is drawn of a pool, in which colour, and how; what is wanted lies below what is ready.
_LOOKS = {"wanted": (GREY, 3.2), "ready": (BLUE, 1.6), "starting": (ORANGE, 1.4), "draining": (PURPLE, 1.4),
          "warm": (RED, 1.4)}


@frozen(eq=False)
class ScaledMoments:
    """A fleet from its start to `end`, in seconds: its `sizes`, and dollars of a GPU-hour by pool, if they are known.

    `watts` of all GPUs are means of equal times.  Other equal times have requests that `arrived`, per second, and the
    share of these that `kept` their targets: nan where none came, None without targets.
    """

    end: float
    sizes: FleetSizes
    prices: Mapping[str, float]
    watts: Floats
    arrived: Floats
    kept: Floats | None

    @classmethod
    def of(cls, history: History, limits: LatencyTargets, summary: Mapping[str, Any], tables: tuple[pa.Table, pa.Table],
           ) -> "ScaledMoments":
        """Those of a run with this *summary*, and these *tables* of replicas and of decisions."""
        requests, end = history.requests, history.duration or 1.0
        kept = good(history, limits) if limits else None
        return cls(end, FleetSizes.of(*tables), prices(summary), power(history).means(np.linspace(0, end, _POINTS + 1)),
                   *by_arrival(requests.arrival, requests.ended, kept, end))

    @property
    def cost(self) -> Series:
        """Dollars per hour of all GPUs."""
        parts = [(self.prices[pool], gpus) for pool, gpus in self.sizes.gpus.items()]
        return Series.of_changes(np.concatenate([gpus.times for _, gpus in parts]),
                                 np.concatenate([price * np.diff(gpus.values, prepend=0.0) for price, gpus in parts]))


def prices(summary: Mapping[str, Any]) -> dict[str, float]:
    """Dollars of a GPU-hour of each pool; empty where any pool's GPUs have no price."""
    found = {name: (pool["gpu_dollars"], pool.get("allocated_gpu_seconds", pool["gpus"] * summary["duration"]))
             for name, pool in summary["pools"].items()}
    if any(dollars is None for dollars, _ in found.values()):
        return {}
    return {name: 3600 * dollars / seconds if seconds else 0.0 for name, (dollars, seconds) in found.items()}


def by_arrival(arrival: Floats, ended: Bools, kept: Bools | None, end: float, bins: int = _REQUEST_BINS,
               ) -> tuple[Floats, Floats | None]:
    """Requests that came per second, in equal times up to *end*, and the share of *kept* ones of those that *ended*."""
    rates, edges = per_second(arrival, bins, end), np.linspace(0, end, bins + 1)
    if kept is None:
        return rates, None
    came, met = (np.histogram(arrival[which], edges)[0] for which in (ended, ended & kept))
    return rates, np.where(came > 0, met / np.maximum(came, 1), np.nan)


def scaling_chart(moments: ScaledMoments, title: str = "") -> Picture:
    """Arrivals, replicas of each pool, what GPUs cost and draw, and the SLO by arrival, over the same seconds."""
    panels = [_load(moments), *(_replicas(moments, pool) for pool in moments.sizes.replicas), _allocated(moments),
              Panel("Watts of all GPUs", _seconds(moments), Axis("", 0, 1.06 * _most(moments.watts), most=4),
                    [_middles(moments.watts, moments.end, RED)], f"mean {number(float(moments.watts.mean()))} W")]
    if moments.kept is not None:
        panels.append(_attainment(moments, moments.kept))
    return Picture(title, panels, "replicas by state; those that start have GPUs", 10, 1.2 + 1.5 * len(panels),
                   shared=True)


def _seconds(moments: ScaledMoments) -> Axis:
    return Axis(SECONDS, 0, moments.end)


def _most(values: Floats) -> float:
    return float(np.nanmax(values, initial=0.0)) or 1.0


def _load(moments: ScaledMoments) -> Panel:
    edges = np.linspace(0, moments.end, len(moments.arrived) + 1)
    line = Polyline(edges, np.append(moments.arrived, moments.arrived[-1]), "", GREEN, width=1.3, steps=True, area=0.15,
                    hover="%{y:,.4~g} at %{x:,.4~g} s")
    return Panel("Requests that arrive per second", _seconds(moments),
                 Axis("", 0, 1.06 * _most(moments.arrived), most=4), [line])


def _replicas(moments: ScaledMoments, pool: str) -> Panel:
    found = moments.sizes.replicas[pool]
    lines = [_stairs(found[state], moments.end, state, colour, width) for state, (colour, width) in _LOOKS.items()
             if state in found and found[state].peak > 0]
    return Panel(f"Replicas of {pool}", _seconds(moments), _whole(found.values()), lines,
                 legend="above", tall=1.4)


def _whole(counts: Iterable[Series]) -> Axis:
    """An axis of whole numbers."""
    most = round(max(count.peak for count in counts)) or 1
    return Axis("", 0, 1.06 * most, ticks={float(count): f"{count:,}" for count in range(0, most + 1, -(-most // 4))})


def _stairs(series: Series, end: float, name: str, colour: str, width: float = 1.6) -> Polyline:
    """*series* as it is at each moment up to *end*."""
    points = np.array([*windows(series, end)])
    return Polyline(points[:, 0], points[:, 1], name, colour, width=width, steps=True,
                    hover=f"%{{y:,.4~g}} {name} from %{{x:,.5~g}} s on".replace("  ", " "))


def _allocated(moments: ScaledMoments) -> Panel:
    """Dollars per hour, or the GPUs of each pool where they have no price."""
    if moments.prices:
        cost = _stairs(moments.cost, moments.end, "", INK)
        axis = Axis("", 0, 1.06 * moments.cost.peak or 1.0, most=4)
        return Panel("Dollars per hour for the GPUs of replicas", _seconds(moments), axis, [cost])
    lines = [_stairs(gpus, moments.end, pool if len(moments.sizes.gpus) > 1 else "", colour)
             for (pool, gpus), colour in zip(moments.sizes.gpus.items(), cycle(PALETTE), strict=False)]
    return Panel("GPUs allocated", _seconds(moments), _whole(moments.sizes.gpus.values()), lines,
                 legend="above" if len(lines) > 1 else "")


def _middles(values: Floats, end: float, colour: str) -> Polyline:
    """Means between equal times."""
    edges = np.linspace(0, end, len(values) + 1)
    return Polyline((edges[:-1] + edges[1:]) / 2, values, "", colour, width=1.3, area=0.15,
                    hover="%{y:,.4~g} at %{x:,.4~g} s")


def _attainment(moments: ScaledMoments, kept: Floats) -> Panel:
    edges = np.linspace(0, moments.end, len(kept) + 1)
    came = ~np.isnan(kept)
    line = Polyline(((edges[:-1] + edges[1:]) / 2)[came], kept[came], "", BLUE, width=1.3, dots=4.0,
                    hover="%{y:.1%} of those that arrived about %{x:,.4~g} s")
    return Panel("Within the targets, by when requests arrived", _seconds(moments), Axis("", 0, 1.04, percent=True,
                                                                                      most=4), [line],
                 f"at least {percent(float(kept[came].min(initial=1.0)), 1, DOWN)}")


def autoscalers_chart(title: str, arrivals: Sequence[float] | Floats, runs: Sequence[Mapping[str, Any]]) -> Picture:
    """The load over time, and below it the replicas of each pool that each of *runs* asked for, the first one in front.

    *arrivals* are in seconds; `sizes` of a run has steps [seconds, replicas] by pool.
    """
    times = np.asarray(arrivals, dtype=np.float64)
    end = float(times.max(initial=0.0)) or 1.0
    rates = per_second(times, max(10, min(150, len(times) // 20)), end)
    edges = np.linspace(0.0, end, len(rates) + 1)
    axis = Axis("seconds", 0, end)
    load = Polyline(edges, np.append(rates, rates[-1]), "", GREY, width=1.3, steps=True, area=0.25)
    panels = [Panel("Requests per second", axis, Axis("", 0), [load])]
    for pool in runs[0]["sizes"] if runs else ():
        lines = [_asked_sizes(run, run["sizes"][pool], end, INK if not index else PALETTE[(index - 1) % len(PALETTE)])
                 for index, run in enumerate(runs)]
        most = int(max(max(line.y) for line in lines))
        whole = {float(size): f"{size:,}" for size in range(0, most + 1, -(-most // 6) or 1)}
        panels.append(Panel(f"Replicas of {pool} asked for", axis, Axis("", 0, ticks=whole), [*reversed(lines)],
                            legend="right"))
    return Picture(title, panels, "", 9.6, 0.9 + 2.4 * len(panels), shared=True)


def _asked_sizes(run: Mapping[str, Any], steps: Sequence[Sequence[float]], end: float, colour: str) -> Polyline:
    """The sizes that *run* asked for up to the *end*."""
    shown = [step for step in steps if step[0] <= end]
    return Polyline([*(time for time, _ in shown), end], [*(size for _, size in shown), shown[-1][1]],
                    run["autoscaler"], colour, width=2.4 if colour == INK else 1.6, steps=True,
                    hover="%{y} replicas from %{x:,.4~g} s on")
