"""The scheduler of an engine: a plain one, or one that knows of connectors, drafts or images."""

from typing import Any

from ksim.kv_transfer.endpoint import Endpoint
from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.draft_scheduler import DraftScheduler
from ksim.scheduling.image_scheduler import Encoding, ImageConnectorScheduler, ImageScheduler
from ksim.scheduling.scheduler import Scheduler
from ksim.scheduling.speculation import Speculation
from ksim.simulation.vision import Vision

__all__ = ["scheduler_of"]


def scheduler_of(parts: tuple[Any, ...], endpoint: Endpoint | None, speculation: Speculation | None = None,
                 vision: Vision | None = None) -> Scheduler:
    """A scheduler of these *parts*: limits, policy, cache and admission."""
    kinds: tuple[Any, Any] = DraftScheduler, ConnectorScheduler
    more: dict[str, Any] = {"speculation": speculation}
    if vision:
        kinds = ImageScheduler, ImageConnectorScheduler
        more["encoding"] = Encoding(vision.limits, int(speculation is not None and speculation.drops_block))
    if endpoint:
        scheduler: Scheduler = kinds[1](*parts, connector=endpoint, **more)
        return scheduler
    return kinds[0](*parts, **more) if vision or speculation else Scheduler(*parts)
