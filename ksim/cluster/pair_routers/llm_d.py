"""llm-d's scheduling profiles for prefill and decode, and its decider: short uncached prompts are not split."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import define, field, frozen
from attrs.validators import ge, gt

from ksim.cluster.llm_d.assembly import picker_of
from ksim.cluster.llm_d.cycle import PRECISE, Chance, Cycle, SchedulerProfile
from ksim.cluster.llm_d.endpoint_picker import ByEndpointPicker, EndpointPicker, Split
from ksim.cluster.llm_d.epp_config import EndpointPickerConfig, path_or_table
from ksim.cluster.llm_d.parts.pickers import MaxScorePicker
from ksim.cluster.llm_d.parts.producers import PrecisePrefixCacheProducer
from ksim.cluster.llm_d.parts.scorers import PrefixCacheScorer, QueueScorer
from ksim.cluster.pair_routers import V
from ksim.cluster.routers import EngineView
from ksim.flow.request import Request

__all__ = ["LlmD"]


@define
class LlmD(ByEndpointPicker):
    """Picks the decode engine first, then decides whether to split, then picks the prefill engine.

    `config` is an EndpointPickerConfig with a disagg-profile-handler: a YAML file with one, or a table.  Without one,
    an engine's score is `prefix` times the share of the prompt's blocks that it has cached, by KV events, plus `queue`
    times how short its queue is: 1 for the shortest, 0 for the longest, and 1 for all where they are equally long.  The
    best score wins; ties are drawn by `seed`.  A request is split if the decode engine lacks `threshold` or more tokens
    of its prompt; a `threshold` of 0 never splits.  A decode engine of role decode cannot prefill, so it always splits.

    Source: github.com/llm-d/llm-d-router, plugins disagg-profile-handler, prefix-based-pd-decider (`nonCachedTokens`),
    prefix-cache-scorer, queue-scorer and max-score-picker; weights 2 and 1 and 16 tokens are those of llm-d's guide
    pd-disaggregation.  ksim/cluster/llm_d has the parts.
    """

    source: ClassVar[str] = "github.com/llm-d/llm-d-router, guide pd-disaggregation (2026)"

    threshold: int = field(default=16, validator=ge(0))
    prefix: float = field(default=2.0, validator=ge(0))
    queue: float = field(default=1.0, validator=ge(0))
    block_tokens: int = field(default=64, validator=gt(0))
    seed: int = field(default=0, validator=ge(0))
    config: str | Mapping[str, Any] = field(default="", converter=path_or_table)
    _picker: EndpointPicker = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._picker = (picker_of(EndpointPickerConfig.named(self.config), Chance(self.seed), splits=True)
                        if self.config else self._guide())

    def choose(self, request: Request, prefill_engines: Sequence[V], decode_engines: Sequence[V],
               now: float) -> tuple[V | None, V]:
        return self._picker.choose_pair(request, prefill_engines, decode_engines, now)

    def _guide(self) -> EndpointPicker:
        """The picker of llm-d's guide, with prefixes by KV events."""
        producer, scorers = PrecisePrefixCacheProducer(PRECISE, self.block_tokens), (PrefixCacheScorer(PRECISE),
                                                                                   QueueScorer())
        profile = SchedulerProfile((), [*zip((self.prefix, self.queue), scorers, strict=True)], MaxScorePicker())
        return EndpointPicker({"prefill": profile, "decode": profile}, [producer], [producer, *scorers],
                              Split(decider=_Threshold(self.threshold)), Chance(self.seed))


@frozen
class _Threshold:
    """Splits a request if its decode engine lacks so many tokens of its prompt, to the token."""

    tokens: int

    def splits(self, cycle: Cycle, engine: EngineView) -> bool:
        return self.tokens > 0 and cycle.request.prompt - engine.prefix_hit(cycle.request) >= self.tokens
