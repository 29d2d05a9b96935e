"""llm-d's analysers of saturation, by shares of KV caches and queues (1) and by tokens (2), and what follows from them.

Rules are those of llm-d's workload variant autoscaler, commit b08b1c77 (February 2026): internal/saturation,
internal/engines/analyzers/saturation_v2 and internal/engines/pipeline.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil, inf
from statistics import fmean

from attrs import define, field, frozen

#: Fewest replicas that are not saturated before one may go.
_LEAST_FREE = 2
#: Observations of a capacity that count, bytes that a token takes in a queue, and bounds of lengths of answers.
_HISTORY, _BYTES, _SHORT, _MEDIUM = 10, 4.0, 100.0, 500.0


@frozen
class SaturationSettings:
    """A replica is saturated from the first two on, and a model short of room below the triggers.

    The last two are of tokens: the load that replicas should have at most, and below which some may go.
    """

    kv_cache_threshold: float = 0.8
    queue_length_threshold: float = 5.0
    kv_spare_trigger: float = 0.1
    queue_spare_trigger: float = 3.0
    scale_up_threshold: float = 0.85
    scale_down_boundary: float = 0.7


@frozen
class ReplicaState:
    """What a replica of a `variant` reports; `prompt` and `output` are mean tokens of its requests."""

    variant: str
    kv_usage: float
    queue: int
    cost: float = 1.0
    gpu: str = ""
    kv_tokens: int = 0
    tokens_in_use: int = 0
    prompt: float = 0.0
    output: float = 0.0
    hit_rate: float = 0.0


@frozen
class VariantState:
    """A variant: its replicas, of which some are `pending`, and those that are `desired`, 0 if nobody has said."""

    name: str
    replicas: int
    desired: int = 0
    pending: int = 0


# By shares.

@frozen
class Saturation:
    """How saturated a model is: its replicas, those that are not saturated, and what these have to spare on the mean.
    """

    total: int
    free: int
    spare_kv: float
    spare_queue: float
    scale_up: bool
    scale_down_safe: bool


def analyse_shares(replicas: Sequence[ReplicaState], settings: SaturationSettings) -> Saturation:
    """The saturation of a model: saturated replicas do not count in the means, so an idle one beside them hides them.
    """
    free = [replica for replica in replicas if replica.kv_usage < settings.kv_cache_threshold
            and replica.queue < settings.queue_length_threshold]
    kv = _mean([settings.kv_cache_threshold - replica.kv_usage for replica in free])
    queue = _mean([settings.queue_length_threshold - replica.queue for replica in free])
    up = bool(replicas) and (kv < settings.kv_spare_trigger or queue < settings.queue_spare_trigger)
    return Saturation(len(replicas), len(free), kv, queue, up, _is_safe(len(free), kv, queue, settings))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _is_safe(free: int, kv: float, queue: float, settings: SaturationSettings) -> bool:
    """Whether the others keep their spare room with the load of one that goes."""
    if free < _LEAST_FREE:
        return False
    more = free / (free - 1)
    kv_left = settings.kv_cache_threshold - (settings.kv_cache_threshold - kv) * more
    queue_left = settings.queue_length_threshold - (settings.queue_length_threshold - queue) * more
    return kv_left >= settings.kv_spare_trigger and queue_left >= settings.queue_spare_trigger


def targets_by_shares(found: Saturation, replicas: Sequence[ReplicaState],
                      states: Sequence[VariantState]) -> dict[str, int]:
    """One more of the cheapest variant or one less of the dearest; nothing while any of them is in transition.

    A variant without metrics has no target.
    """
    counts: dict[str, int] = {}
    costs: dict[str, float] = {}
    for replica in replicas:
        counts[replica.variant] = counts.get(replica.variant, 0) + 1
        costs.setdefault(replica.variant, replica.cost)
    by_name = {state.name: state for state in states}
    if not counts:
        return {state.name: state.replicas for state in states}
    seen = {name: by_name.get(name, VariantState(name, 0)) for name in counts}
    if any(_wants_other(state) or counts[name] != state.replicas for name, state in seen.items()):
        return {name: state.desired if _wants_other(state) else state.replicas for name, state in seen.items()}
    targets = dict(counts)
    if found.scale_up:
        if choices := [name for name, state in seen.items() if not state.pending]:
            targets[min(choices, key=lambda name: (costs[name], name))] += 1
    elif found.scale_down_safe and (choices := [name for name in counts if counts[name] > 1]):
        targets[max(choices, key=lambda name: (costs[name], name))] -= 1
    return targets


def _wants_other(state: VariantState) -> bool:
    return state.desired not in (0, state.replicas)


# By tokens.

@frozen
class VariantCapacity:
    """Tokens of a variant: what a replica holds, all that are ready, and what is asked of them."""

    name: str
    cost: float
    ready: int
    pending: int
    per_replica: float
    demand: float

    @property
    def capacity(self) -> float:
        return self.ready * self.per_replica

    @property
    def efficiency(self) -> float:
        """The cost of a token."""
        return self.cost / self.per_replica if self.per_replica > 0 else inf


@frozen
class TokenAnalysis:
    """Tokens of a model: those that its replicas hold, those asked for, and what is therefore lacking or spare."""

    supply: float
    demand: float
    required: float
    spare: float
    variants: Sequence[VariantCapacity]


@define
class TokenAnalyser:
    """Capacities in tokens: of the KV cache, and of what was in use when a queue was long, which it remembers.

    A variant's is the median of its replicas'; one without replicas has that it had last.
    """

    settings: SaturationSettings
    _observed: dict[tuple[str, str], deque[int]] = field(factory=dict, init=False)
    _last: dict[str, float] = field(factory=dict, init=False)

    def analyse(self, replicas: Sequence[ReplicaState], states: Sequence[VariantState],
                queued: tuple[int, int] = (0, 0)) -> TokenAnalysis:
        """The tokens of a model; *queued* are requests and bytes in its gateway."""
        capacities: dict[str, list[int]] = {}
        demands: dict[str, float] = {}
        costs: dict[str, float] = {}
        for replica in replicas:
            costs.setdefault(replica.variant, replica.cost)
            if replica.kv_tokens > 0:
                capacities.setdefault(replica.variant, []).append(self._capacity(replica))
                demand = replica.tokens_in_use + replica.queue * int(replica.prompt)
                demands[replica.variant] = demands.get(replica.variant, 0.0) + demand
        for name, values in capacities.items():
            self._last[name] = float(values[-1])
        variants = [VariantCapacity(state.name, costs.get(state.name, 0.0), max(0, state.replicas - state.pending),
                                    state.pending, self._per_replica(state.name, capacities),
                                    demands.get(state.name, 0.0)) for state in states]
        return self._summed(variants, _demand_of_queue(queued, replicas))

    def _summed(self, variants: Sequence[VariantCapacity], queued: float) -> TokenAnalysis:
        supply = sum(variant.capacity for variant in variants)
        coming = sum((variant.ready + variant.pending) * variant.per_replica for variant in variants)
        demand = sum(variant.demand for variant in variants) + queued
        up, down = self.settings.scale_up_threshold, self.settings.scale_down_boundary
        # What is pending counts against what is lacking, and not as spare.
        required = max(0.0, demand / up - coming) if up > 0 else 0.0
        return TokenAnalysis(supply, demand, required, max(0.0, supply - demand / down) if down > 0 else 0.0, variants)

    def _per_replica(self, name: str, capacities: Mapping[str, Sequence[int]]) -> float:
        if name not in capacities:
            return self._last.get(name, 0.0)
        ordered = sorted(capacities[name])
        middle = len(ordered) // 2
        return float(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2)

    def _capacity(self, replica: ReplicaState) -> int:
        """What a replica holds: its cache up to the threshold, or what its queue has shown to be the most."""
        by_memory = int(replica.kv_tokens * self.settings.kv_cache_threshold)
        key = replica.gpu, _length(replica.output)
        if replica.queue >= int(self.settings.queue_length_threshold) and replica.tokens_in_use > 0:
            self._observed.setdefault(key, deque(maxlen=_HISTORY)).append(replica.tokens_in_use)
            return min(by_memory, replica.tokens_in_use)
        return min(by_memory, int(fmean(self._observed[key]))) if key in self._observed else by_memory


def _length(output: float) -> str:
    return "short" if output < _SHORT else "medium" if output < _MEDIUM else "long"


def _demand_of_queue(queued: tuple[int, int], replicas: Sequence[ReplicaState]) -> float:
    """Tokens of what waits at the gateway: prompts, less what is cached on the mean, and answers."""
    requests, size = queued
    known = [replica for replica in replicas if replica.prompt > 0 or replica.output > 0]
    prompts = max(size / _BYTES, requests * _mean([replica.prompt for replica in known]))
    answers = requests * _mean([replica.output for replica in known])
    return prompts * (1 - _mean([replica.hit_rate for replica in known])) + answers


def targets_by_tokens(found: TokenAnalysis, states: Sequence[VariantState]) -> dict[str, int]:
    """What is lacking of the variants whose tokens cost least; what is spare from the dearest, all of it if need be.

    The cheapest keeps one replica where no other has any.
    """
    targets = {state.name: state.replicas for state in states}
    if found.required > 0:
        _raise(targets, found)
    elif found.spare > 0:
        _lower(targets, found)
    return targets


def _raise(targets: dict[str, int], found: TokenAnalysis) -> None:
    left = found.required
    for variant in sorted(found.variants, key=lambda variant: variant.efficiency):
        if left > 0 and variant.per_replica > 0:
            more = ceil(left / variant.per_replica)
            targets[variant.name] += more
            left -= more * variant.per_replica


def _lower(targets: dict[str, int], found: TokenAnalysis) -> None:
    left = found.spare
    cheapest = min(found.variants, key=lambda variant: variant.cost).name
    for variant in sorted(found.variants, key=lambda variant: -variant.cost):
        if left <= 0 or variant.per_replica <= 0:
            continue
        others = any(count > 0 for name, count in targets.items() if name != cheapest)
        kept = 1 if variant.name == cheapest and not others else 0
        fewer = min(int(left / variant.per_replica), targets[variant.name] - kept)
        if fewer > 0:
            targets[variant.name] -= fewer
            left -= fewer * variant.per_replica
