"""How the difference of a deployment changes from its lowest to its highest load."""

from collections.abc import Iterator, Sequence

from ksim.validation.benchmarks.causes import NEAR
from ksim.validation.benchmarks.comparison import Compared

#: What it means where a latency fits at low load alone, or is off by as much at any load.
_MEANING = {"ttft": ("the queue or the capacity differs",
                     "what a request takes alone differs: client, network or prefill"),
            "tpot": ("what a batch adds to a step differs: attention, KV reads or scheduling",
                     "every step differs: launches, the host, or weights that are read more slowly")}
#: A difference grows with the load if it is so many times as large at the highest one.
_GROWS = 2.0


def trends(compared: Sequence[Compared]) -> Iterator[str]:
    """A sentence on each latency that differs in *compared*, runs of growing load; none of a single run."""
    if len(compared) < 2 or compared[0].recorded.load == compared[-1].recorded.load:
        return
    for metric in ("ttft", "tpot"):
        runs = [one for one in compared if f"{metric}_mean" in one.figures]
        if len(runs) > 1:
            yield from _trend(metric, runs[0], runs[-1])


def _trend(metric: str, low: Compared, high: Compared) -> Iterator[str]:
    (few, own_few), (many, own_many) = (one.figures[f"{metric}_mean"] for one in (low, high))
    far = [abs(measured / own - 1) > NEAR for measured, own in ((few, own_few), (many, own_many))]
    if not any(far):
        return
    late, later = few - own_few, many - own_many
    grows, alike = _MEANING[metric]
    word = (f"so it grows with the load: {grows}" if abs(later) > _GROWS * abs(late) else
            f"about as much at any load: {alike}" if abs(late) <= _GROWS * abs(later) and late * later > 0 else
            "so it shrinks with the load: what happens when there is little to do differs, such as clocks")
    yield (f"{metric.upper()}: {1e3 * late:+,.4g} ms at {low.recorded.load}, {1e3 * later:+,.4g} ms at"
           f" {high.recorded.load}, {word}")
