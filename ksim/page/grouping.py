"""Phases of requests' time in the groups in which they are shown, each with its colour."""

from collections.abc import Sequence

import numpy as np

from ksim.page.document import BLUE, GOLD, GREEN, GREY, ORANGE, PINK, PURPLE, RED, TEAL
from ksim.results.attribution import groups, members
from ksim.results.steps import Floats

COLOURS = {
    "client's back-off": "#4a3f55", "held at the gateway": "#a38cb5",
    "client and intake": GREY, "queue": ORANGE, "queue: KV load": "#2f7f86", "queue: rest": ORANGE,
    "own prefill": BLUE, "others' prefill": "#8db4e2",
    "others' decodes": "#9ecfb8", "hop": "#6b7480", "wait for room": RED, "KV transfer": TEAL, "KV contention": PINK,
    "next step": "#c9a8a1", "decode": GREEN, "preemption": "#8c2f39", "host": GOLD, "adapter loads": "#7a5195",
    "communication": PURPLE, "delivery": "#b9c0c8",
}


def by_group(seconds: Floats, names: Sequence[str]) -> Floats:
    """The seconds of each group of phases: the last dimension goes from *names* to groups."""
    return np.stack([seconds[..., [names.index(name) for name in members(group, names)]].sum(axis=-1)
                     for group in groups(names)], axis=-1)


def colour(group: str) -> str:
    return COLOURS.get(group, GREY)


def largest(seconds: Floats, titles: Sequence[str], most: int = 3) -> list[tuple[str, float]]:
    """The groups with the most seconds that are more than a twentieth of all, and their shares."""
    whole = float(seconds.sum()) or 1.0
    order = np.argsort(-seconds, kind="stable")[:most].tolist()
    return [(titles[place], float(seconds[place]) / whole) for place in order if seconds[place] > 0.05 * whole]
