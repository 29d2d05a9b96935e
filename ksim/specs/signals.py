"""What routers are told of engines, how often, how late, and how much of it is lost."""

from attrs import field, frozen
from attrs.validators import ge, lt

from ksim.foundation.units import Seconds, quantity


@frozen
class SignalSettings:
    """The signals of engines: metrics that are scraped, and events that are sent.

    What a router sends and receives itself needs none of them, and is known at once.
    """

    scrape_interval: Seconds = field(default=0.05, converter=quantity, validator=ge(0))
    """How often the metrics of each engine are scraped; 0 shows them as they are at each moment. Unit: s. Source: llm-d
    (50 ms). Example: "200 ms"."""
    delay: Seconds = field(default=0.0, converter=quantity, validator=ge(0))
    """Time until a scrape, or a batch of KV events, has arrived. Unit: s. Example: "5 ms"."""
    metrics: bool = True
    """Whether engines can be scraped for their metrics."""
    kv_events: bool = True
    """Whether engines send KV events: what enters and leaves their caches, and the tiers below. Source: vLLM
    (kv_events_config)."""
    loss: float = field(default=0.0, converter=quantity, validator=(ge(0), lt(1)))
    """Share of scrapes, and of batches of KV events, that are lost. Unit: share."""

    @property
    def exact_events(self) -> bool:
        """Whether KV events tell at every moment what is cached."""
        return not self.delay and not self.loss
