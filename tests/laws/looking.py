"""Routers that note what they see."""

from typing import Any, ClassVar

from attrs import define, field

#: What routers have noted since it was last cleared.
NOTED: list[Any] = []


@define
class Looking:
    """Goes by all that it may know, and notes it: each request goes where what was seen adds up to the least."""

    signals: ClassVar[tuple[str, ...]] = ("books", "metrics", "kv_events")
    scores: Any = field(default=None, init=False)

    def choose(self, request, engines, now):
        seen = [(view.outstanding, view.outstanding_tokens, view.prefill_tokens, view.waiting, view.running,
                 round(view.kv_usage, 9), round(view.scraped_at, 6), view.prefix_hit(request)) for view in engines]
        NOTED.append((request.id, seen))
        self.scores = [sum(row[:5]) - 7 * row[7] for row in seen]
        return engines[self.scores.index(min(self.scores))]

    def on_first_token(self, request, number, now):
        NOTED.append((request.id, "first token", number, round(now, 6)))

    def on_end(self, request, number, now):
        NOTED.append((request.id, "end", number, round(now, 6)))


@define
class Comparing(Looking):
    """Notes beside what it sees what is true."""

    signals: ClassVar[tuple[str, ...]] = ("books", "metrics", "kv_events", "truth")

    def choose(self, request, engines, now):
        for view in engines:
            engine, cache = view.truth, view.truth.scheduler.cache
            scheduler = engine.scheduler
            NOTED.append(((view.outstanding, view.waiting, view.running, view.kv_usage, view.prefix_hit(request)),
                          (engine.outstanding, len(scheduler.waiting), len(scheduler.running),
                           cache.pool.used / cache.capacity, engine.prefix_hit(request))))
        return super().choose(request, engines, now)


@define
class LookingBelow:
    """Notes what is known of the GPUs' caches and of the tiers below: a request goes where most of it is."""

    signals: ClassVar[tuple[str, ...]] = ("books", "kv_events")

    def choose(self, request, engines, now):
        seen = [(view.outstanding, view.prefix_hit(request), dict(view.tier_hits(request))) for view in engines]
        NOTED.append((request.id, round(now, 6), seen))
        costs = [30 * under_way - hit - sum(below.values()) for under_way, hit, below in seen]
        return engines[costs.index(min(costs))]


@define
class Unsure(Looking):
    """Does not look at KV events."""

    signals: ClassVar[tuple[str, ...]] = ("books", "metrics")

    def choose(self, request, engines, now):
        seen = [(view.outstanding, view.outstanding_tokens, view.prefill_tokens, view.waiting, view.running,
                 round(view.kv_usage, 9), round(view.scraped_at, 6)) for view in engines]
        NOTED.append((request.id, seen))
        self.scores = [sum(row[:5]) for row in seen]
        return engines[self.scores.index(min(self.scores))]
