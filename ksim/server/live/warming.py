"""Warming up: what is computed only once, such as prices of steps, is computed before the first request."""

from ksim.engine.horizon import Horizon
from ksim.flow.batch import Batch
from ksim.flow.request import Request
from ksim.server.live.live import Live
from ksim.server.live.live_log import LiveLog
from ksim.simulation.assembly import build

__all__ = ["warm_up"]


def warm_up(live: Live) -> None:
    """Play a request on a fleet like that of *live*, and price a prompt and a decode on each engine."""
    env = Horizon()
    env.process(build(live.fleet, env, LiveLog(), lambda: None).serve([Request(0, 0.0, 100, 5)]))
    env.run()
    for timer in [timer for engine in live.engines for timer in engine.timers]:
        for batch in (Batch.of((256, 0), samples=1), Batch.of((1, 256))):
            timer.step_cost(batch, ())
