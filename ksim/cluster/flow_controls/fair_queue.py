"""A queue at the gateway that tenants share by weight: weighted fair queueing over the tokens of their requests."""

from collections.abc import Mapping
from typing import ClassVar

from attrs import define, field
from attrs.validators import ge, gt

from ksim.cluster.flow_controls.queue_limit import QueueLimit
from ksim.flow.request import Request

__all__ = ["FairQueue"]


def _positive(instance: object, attribute: object, weights: Mapping[str, float]) -> None:
    if wrong := [tenant for tenant, weight in weights.items() if not 0 < weight < float("inf")]:
        raise ValueError(f"the weight of {wrong[0]!r} is {weights[wrong[0]]!r}, and has to be above 0")


@define
class FairQueue(QueueLimit):
    """Holds requests back and refuses them as `queue_limit` does; they leave the queue in the order of their tags.

    A tag is the larger of the tag of the request that left last and that of the tenant's request before it, plus the
    request's cost over the tenant's weight (self-clocked fair queueing, Golestani 1994).  So over any time in which
    two tenants have requests in the queue, what each got over its weight differs by no more than one request of each.

    A request costs `input_token_weight` for each prompt token and `output_token_weight` for each of `output_tokens`,
    the output that is expected where nobody can know it: the costs of llm-d's vtc-fairness-policy, which charges the
    same and gives turns to the tenant that has had least.  Tenants that `weights` does not name have weight 1.
    """

    source: ClassVar[str] = "Golestani 1994 (SCFQ); costs of llm-d-router's vtc-fairness-policy"
    weights: Mapping[str, float] = field(factory=dict, validator=_positive)
    input_token_weight: float = field(default=1.0, validator=gt(0))
    output_token_weight: float = field(default=3.0, validator=ge(0))
    output_tokens: int = field(default=128, validator=ge(0))
    _virtual: float = field(default=0.0, init=False)
    _last: dict[str, float] = field(factory=dict, init=False)
    _tags: dict[int, float] = field(factory=dict, init=False)

    def cost(self, request: Request) -> float:
        """What *request* is charged with."""
        return self.input_token_weight * request.prompt + self.output_token_weight * self.output_tokens

    def rank(self, request: Request, now: float) -> float:
        begin = max(self._virtual, self._last.get(request.tenant, 0.0))
        tag = begin + self.cost(request) / self.weights.get(request.tenant, 1.0)
        self._last[request.tenant] = self._tags[request.id] = tag
        return tag

    def sent(self, request: Request, engine_number: int, now: float) -> None:
        self._virtual = self._tags.pop(request.id, self._virtual)
