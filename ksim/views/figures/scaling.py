"""Figures of fleets whose sizes change while they serve."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ksim.views.charts import GREY, INK, PALETTE, Axis, Panel, Polyline
from ksim.views.figures import Picture


def autoscalers_chart(title: str, arrivals: Sequence[float], runs: Sequence[Mapping[str, Any]]) -> Picture:
    """The load over time, and below it the replicas of each pool that each of *runs* asked for, the first one in front.

    *arrivals* are in seconds; `sizes` of a run has steps [seconds, replicas] by pool.
    """
    times = np.asarray(arrivals, dtype=np.float64)
    end = float(times.max(initial=0.0)) or 1.0
    edges = np.linspace(0.0, end, max(10, min(150, len(times) // 20)) + 1)
    rates = np.histogram(times, edges)[0] / np.diff(edges)
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
