"""The yardstick: how many events per CPU second a bare loop over a heap handles on this machine."""

import heapq
import time
from collections.abc import Callable


def events_per_second(events: int = 1_000_000) -> float:
    """Pop a callback, call it, push another: the least that any event simulator in Python does."""
    heap: list[tuple[float, int, Callable[[float, int], None]]] = []

    def callback(now: float, number: int) -> None:
        if number < events:
            heapq.heappush(heap, (now + 1.0, number + 64, callback))

    for number in range(64):
        heapq.heappush(heap, (float(number) / 64, number, callback))
    begin = time.process_time()
    while heap:
        now, number, call = heapq.heappop(heap)
        call(now, number)
    return events / (time.process_time() - begin)
