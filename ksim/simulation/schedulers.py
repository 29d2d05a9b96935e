"""The scheduler of an engine: a plain one, or one that knows of connectors, drafts, images or LoRA adapters."""

from typing import Any

from ksim.kv_cache.hybrid import HybridCache
from ksim.scheduling.adapter_scheduler import AdapterScheduler
from ksim.scheduling.adapter_store import AdapterStore
from ksim.scheduling.connector import Connector
from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.draft_scheduler import DraftScheduler
from ksim.scheduling.group_rules import GroupRules
from ksim.scheduling.image_scheduler import Encoding, ImageScheduler
from ksim.scheduling.mixed import mixed
from ksim.scheduling.scheduler import Scheduler
from ksim.scheduling.speculation import Speculation
from ksim.simulation.vision import Vision

__all__ = ["scheduler_of"]


def scheduler_of(parts: tuple[Any, ...], connector: Connector | None, speculation: Speculation | None = None,
                 vision: Vision | None = None, adapters: AdapterStore | None = None) -> Scheduler:
    """A scheduler of these *parts*: limits, policy, cache and admission."""
    more: dict[str, Any] = {}
    kind: Any = Scheduler
    if speculation or vision or connector:
        kind, more["speculation"] = DraftScheduler, speculation
    if connector:
        kind, more["connector"] = ConnectorScheduler, connector
    if vision:
        kind = mixed(ImageScheduler, kind)
        more["encoding"] = Encoding(vision.limits, int(speculation is not None and speculation.drops_block))
    if adapters:
        kind, more["adapters"] = mixed(AdapterScheduler, kind), adapters
    if isinstance(parts[2], HybridCache):
        kind = mixed(GroupRules, kind)
    scheduler: Scheduler = kind(*parts, **more)
    return scheduler
