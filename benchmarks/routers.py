"""What a choice among 32 engines costs, router by router: CPU time of `choose`, as if on the standard machine.

Prompts are of 150 groups, which share five sixths of them; the engines' views are a table.  Requests end 200 choices
after they were sent, which is not counted.
"""

import time
from collections.abc import Callable
from typing import Any

from benchmarks.findings import Findings, Sheet
from benchmarks.yardstick import beside, scaled
from ksim.cluster.signals import signals_of
from ksim.cluster.view import View
from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.foundation.config import Choice
from ksim.foundation.plugins import plugin

ENGINES, CHOICES, UNDER_WAY = 32, 2000, 200
#: Tokens of a prompt, and of its pieces that have names.
PROMPTS = ((512, 64), (2048, 64), (8192, 512))


class _Seen(View):
    """An engine whose KV events say that it has part of each prompt."""

    __slots__ = ()

    def prefix_hit(self, request: Request) -> int:
        return 64 * (self.number % 5)


def _views() -> list[View]:
    return [_Seen(number, "both", None, kv_blocks=18_000, block_tokens=16, outstanding=number % 7, waiting=number % 4,
                  running=number, kv_usage=number / ENGINES, scraped_at=0.0) for number in range(ENGINES)]


def _requests(tokens: int, chunk: int) -> list[Request]:
    own = -(-tokens // chunk) * 5 // 6
    return [Request(number, 0.01 * number, tokens, 100,
                    [(number % (150 if place < own else 750), place) for place in range(tokens // chunk)], chunk)
            for number in range(CHOICES)]


def _seconds(router: Any, requests: list[Request]) -> float:
    """The CPU time of a choice, in the second half of *requests*."""
    views, chosen, spent = _views(), [], 0.0
    for place, request in enumerate(requests):
        begin = time.process_time()
        chosen.append(router.choose(request, views, request.arrival).number)
        spent += (time.process_time() - begin) * (2 * place >= len(requests))
        if place >= UNDER_WAY and hasattr(router, "on_end"):
            ended = requests[place - UNDER_WAY]
            router.on_end(ended, chosen[ended.id], request.arrival)
    return spent / (len(requests) / 2)


def _measured() -> list[str]:
    """The routers that need nothing of the engines themselves, nor models of their steps."""
    routers = {name: plugin("cluster.routers", Choice(name)) for name in catalog.names("cluster.routers")}
    return [name for name, router in routers.items()
            if "truth" not in signals_of(router) and not hasattr(router, "measured")]


def _row(name: str) -> tuple[str, list[float]]:
    def best(tokens: int, chunk: int) -> Callable[[], float]:
        requests = _requests(tokens, chunk)
        return lambda: min(_seconds(plugin("cluster.routers", Choice(name)), requests) for _ in range(3))

    timed = [beside(best(*prompt)) for prompt in PROMPTS]
    return name, [scaled(1e6 * seconds, yardstick) for seconds, yardstick in timed]


def findings() -> Findings:
    """Microseconds of a choice by router and prompt."""
    rows = [_row(name) for name in _measured()]
    header = ("router", *(f"{tokens:,} tokens" for tokens, _ in PROMPTS))
    sheet = Sheet(f"Microseconds of a choice among {ENGINES} engines, by the prompt", header,
                  [(name, *(f"{each:.1f}" for each in times)) for name, times in rows])
    return Findings([sheet])
