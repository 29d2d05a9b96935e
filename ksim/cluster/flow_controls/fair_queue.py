"""A queue at the gateway that tenants share by weight: self-clocked fair queueing by tokens."""

from collections.abc import Mapping, Set
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
    """Holds requests back and refuses them as `queue_limit` does; a tenant's leave in their order.

    The first request of each tenant has a tag: where its tenant's last one ended, plus its cost over the tenant's
    weight.  The least tag goes first, and is the virtual time; a tenant that had nobody in the queue begins there
    (self-clocked fair queueing, Golestani 1994).  So over any time in which two tenants have requests in the queue,
    what each got over its weight differs by no more than one request of each.  Who is refused is not charged.

    A request costs `input_token_weight` for each prompt token and `output_token_weight` for each of `output_tokens`,
    the output that is expected where nobody can know it: as in llm-d's vtc-fairness-policy, which has no weights of
    tenants.  Those that `weights` does not name have weight 1.
    """

    source: ClassVar[str] = "Golestani 1994 (SCFQ); costs of llm-d-router's vtc-fairness-policy"
    weights: Mapping[str, float] = field(factory=dict, validator=_positive)
    input_token_weight: float = field(default=1.0, validator=gt(0))
    output_token_weight: float = field(default=3.0, validator=ge(0))
    output_tokens: int = field(default=128, validator=ge(0))
    _virtual: float = field(default=0.0, init=False)
    _ended: dict[str, float] = field(factory=dict, init=False)  # the tag of each tenant's last request
    _waiting: Set[str] = field(default=frozenset(), init=False)  # tenants at the pick before

    def cost(self, request: Request) -> float:
        """The cost that *request* is charged with."""
        return self.input_token_weight * request.prompt + self.output_token_weight * self.output_tokens

    def flow(self, request: Request) -> str:
        return request.tenant

    def pick(self, heads: Mapping[str, Request]) -> str:
        for tenant in heads.keys() - self._waiting:
            self._ended[tenant] = max(self._virtual, self._ended.get(tenant, 0.0))
        tags = {tenant: self._ended[tenant] + self.cost(request) / self.weights.get(tenant, 1.0)
                for tenant, request in heads.items()}
        least = min(tags, key=lambda tenant: (tags[tenant], heads[tenant].id))
        self._virtual = self._ended[least] = tags[least]
        self._waiting = frozenset(heads)
        return least
