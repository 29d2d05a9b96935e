"""llm-d's endpoint picker: filters, scorers with weights, a picker; as options, or by its EndpointPickerConfig."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import Factory, define, field
from attrs.validators import ge

from ksim.cluster.llm_d.assembly import picker_of
from ksim.cluster.llm_d.cycle import Chance
from ksim.cluster.llm_d.endpoint_picker import ByEndpointPicker, EndpointPicker
from ksim.cluster.llm_d.epp_config import EndpointPickerConfig, PluginRef, PluginSpec, SchedulingProfile, path_or_table
from ksim.cluster.routers import V
from ksim.flow.request import Request
from ksim.foundation.errors import ConfigError

__all__ = ["LlmD"]

#: The weights of llm-d's guide optimized-baseline (May 2026).
BASELINE = {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0,
            "no-hit-lru-scorer": 2.0}


@define
class LlmD(ByEndpointPicker):
    """An engine's score is the sum of what each scorer gives it, from 0 to 1, times the scorer's weight.

    `config` is an EndpointPickerConfig: a YAML file with one, or a table.  Without one, `scorers` are types and their
    weights, `filters` and `picker` are types, and `parameters` has the parameters of types, producers among them.  Ties
    are drawn by `seed`.

    ksim/cluster/llm_d has the parts, each with its source.
    """

    source: ClassVar[str] = "github.com/llm-d/llm-d-router, guide optimized-baseline (2026)"

    config: str | Mapping[str, Any] = field(default="", converter=path_or_table)
    scorers: Mapping[str, float] = Factory(lambda: dict(BASELINE))
    filters: Sequence[str] = ()
    picker: str = "max-score-picker"
    parameters: Mapping[str, Any] = Factory(dict)
    seed: int = field(default=0, validator=ge(0))
    _picker: EndpointPicker = field(init=False)

    def __attrs_post_init__(self) -> None:
        config = EndpointPickerConfig.named(self.config) if self.config else self._inline()
        self._picker = picker_of(config, Chance(self.seed))

    def choose(self, request: Request, engines: Sequence[V], now: float) -> V | None:
        return self._picker.choose(request, engines, now)

    def _inline(self) -> EndpointPickerConfig:
        """The configuration that the other options stand for."""
        types = [*self.filters, *self.scorers, self.picker]
        plugins = [PluginSpec(name, parameters=self.parameters.get(name, {}))
                   for name in dict.fromkeys([*self.parameters, *types])]
        refs = [PluginRef(name, self.scorers.get(name, 1.0)) for name in types]
        if len({*types}) < len(types):
            raise ConfigError("scorers, filters and picker", "name a type twice; use a config for several of a type")
        return EndpointPickerConfig(plugins, [SchedulingProfile("default", refs)])
