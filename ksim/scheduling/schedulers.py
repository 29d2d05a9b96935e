"""Which scheduler an engine has: a plain one, or one that knows of connectors, drafts, images or LoRA adapters."""

from typing import Any

from ksim.kv.cache.hybrid import HybridCache
from ksim.scheduling.adapter_scheduler import AdapterScheduler
from ksim.scheduling.adapter_store import AdapterStore
from ksim.scheduling.connector import Connector
from ksim.scheduling.connector_scheduler import ConnectorScheduler
from ksim.scheduling.draft_scheduler import DraftScheduler, Speculation
from ksim.scheduling.group_rules import GroupRules
from ksim.scheduling.image_scheduler import Encoding, ImageScheduler
from ksim.scheduling.job import EncoderLimits
from ksim.scheduling.scheduler import Scheduler, mixed

__all__ = ["AdapterStore", "ConnectorScheduler", "scheduler_of"]


def scheduler_of(parts: tuple[Any, ...], connector: Connector | None = None, speculation: Speculation | None = None,
                 images: EncoderLimits | None = None, adapters: AdapterStore | None = None) -> Scheduler:
    """A scheduler of these *parts*: limits, policy, cache and, unless all may start, admission.

    It verifies the drafts of *speculation*, encodes *images* within their limits, and knows where *adapters* are.  Only
    one with a HybridCache has the rules of groups.
    """
    more: dict[str, Any] = {}
    kind: Any = Scheduler
    if speculation or images or connector:
        kind, more["speculation"] = DraftScheduler, speculation
    if connector:
        kind, more["connector"] = ConnectorScheduler, connector
    if images:
        kind = mixed(ImageScheduler, kind)
        more["encoding"] = Encoding(images, int(speculation is not None and speculation.drops_block))
    if adapters:
        kind, more["adapters"] = mixed(AdapterScheduler, kind), adapters
    if isinstance(parts[2], HybridCache):
        kind = mixed(GroupRules, kind)
    scheduler: Scheduler = kind(*parts, **more)
    return scheduler
