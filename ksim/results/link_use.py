"""How much of the links of a fleet flows use over time."""

import numpy as np
from attrs import frozen

from ksim.results.history import History
from ksim.results.series import Series
from ksim.results.steps import Floats


@frozen(eq=False)
class LinkUse:
    """A link by its `name`, the share of its capacity in use over time, and the mean of that over the run."""

    name: str
    kind: str
    capacity: float
    use: Series
    mean: float


def busiest(history: History, most: int) -> list[LinkUse]:
    """The links whose mean use is largest, at most so many of them; those that were never used are left out."""
    events, ends = history.link_use, np.array([history.duration])
    order = np.argsort(events["link"], kind="stable")
    numbers, first = np.unique(events["link"][order], return_index=True)
    groups = dict(zip(numbers.tolist(), np.split(order, first[1:]), strict=True)) if len(numbers) else {}
    found = []
    for link in history.links:
        if link.link in groups:
            use = _latest(events["time"][groups[link.link]], events["rate"][groups[link.link]] / link.capacity)
            mean = float(use.integral(ends)[0]) / (history.duration or 1.0)
            found.append(LinkUse(link.name, link.kind, link.capacity, use, mean))
    return sorted((link for link in found if link.mean > 0), key=lambda link: (-link.mean, link.name))[:most]


def _latest(times: Floats, values: Floats) -> Series:
    """The values from *times* on, which ascend; of those at one time the last one counts."""
    last = np.append(times[1:] > times[:-1], True)
    return Series(times[last], values[last])
