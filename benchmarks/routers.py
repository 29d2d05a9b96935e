"""What a choice among 32 engines costs, router by router: CPU time of `choose`, as if on the standard machine.

Prompts are of 150 groups, which share five sixths of them; the engines' views are a table, and who looks at engines
themselves, or asks how long steps take, finds 32 at rest.  Requests have their first token and end 200 choices after
they were sent, which is not counted.  The goal is for prompts of 2,048 tokens.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from benchmarks.findings import Findings, Sheet
from benchmarks.routing import scenario
from benchmarks.yardstick import beside, scaled
from ksim.cluster.forecast import models_of
from ksim.cluster.signals import View
from ksim.engine.loop_times import Horizon
from ksim.flow.log import Log
from ksim.flow.request import Request
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.scenario.scenario import Scenario
from ksim.simulation.assembly import build
from ksim.simulation.fleet import Fleet

ENGINES, CHOICES, UNDER_WAY = 32, 2000, 200
#: Tokens of a prompt, and of its pieces that have names.
PROMPTS = ((512, 64), (2048, 64), (8192, 512))


class _Seen(View):
    """An engine whose KV events say that it has part of each prompt."""

    __slots__ = ()

    def prefix_hit(self, request: Request) -> int:
        return 64 * (self.number % 5)


@cache
def _engines() -> Sequence[Any]:
    made = Scenario.of(scenario("least_outstanding", 1))
    return build(Fleet.of(made), Horizon(), Log(), lambda: None).engines


def _views() -> list[View]:
    return [_Seen(engine.number, "both", engine, kv_blocks=18_000, block_tokens=16, outstanding=engine.number % 7,
                  waiting=engine.number % 4, running=engine.number, kv_usage=engine.number / ENGINES, scraped_at=0.0)
            for engine in _engines()]


def _requests(tokens: int, chunk: int) -> list[Request]:
    own = -(-tokens // chunk) * 5 // 6
    return [Request(number, 0.01 * number, tokens, 100,
                    [(number % (150 if place < own else 750), place) for place in range(tokens // chunk)], chunk)
            for number in range(CHOICES)]


def _seconds(router: Any, requests: list[Request]) -> float:
    """The CPU time of a choice, in the second half of *requests*."""
    views, chosen, spent = _views(), [], 0.0
    if hasattr(router, "measured"):
        router.measured(models_of(_engines()))
    for place, request in enumerate(requests):
        begin = time.process_time()
        chosen.append(router.choose(request, views, request.arrival).number)
        spent += (time.process_time() - begin) * (2 * place >= len(requests))
        if place >= UNDER_WAY:
            _end(router, requests[place - UNDER_WAY], chosen[place - UNDER_WAY], request.arrival)
    return spent / (len(requests) / 2)


def _end(router: Any, request: Request, number: int, now: float) -> None:
    for told in ("on_first_token", "on_end"):
        if tell := getattr(router, told, None):
            tell(request, number, now)


def _row(name: str) -> tuple[str, list[float]]:
    def best(tokens: int, chunk: int) -> Callable[[], float]:
        requests = _requests(tokens, chunk)
        return lambda: min(_seconds(plugin("cluster.routers", Choice(name)), requests) for _ in range(3))

    timed = [beside(best(*prompt)) for prompt in PROMPTS]
    return name, [scaled(1e6 * seconds, yardstick) for seconds, yardstick in timed]


def findings() -> Findings:
    """Microseconds of a choice by router and prompt."""
    rows = [_row(name) for name in catalog.names("cluster.routers")]
    header = ("router", *(f"{tokens:,} tokens" for tokens, _ in PROMPTS))
    sheet = Sheet(f"Microseconds of a choice among {ENGINES} engines, by the prompt", header,
                  [(name, *(f"{each:.1f}" for each in times)) for name, times in rows])
    return Findings([sheet])
