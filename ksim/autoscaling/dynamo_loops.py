"""The two loops of Dynamo's planner 1.6.1: a slow one by forecasts, a fast one by what engines report.

Rules are those of dynamo/planner/core, throughput_scaling.py, load_scaling.py and state_machine.py.
"""

from collections.abc import Mapping, Sequence
from math import ceil, isfinite, isnan

from attrs import define, field, frozen

from ksim.autoscaling import Load
from ksim.autoscaling.dynamo_engine import EngineModel, Shape, Target
from ksim.autoscaling.gpu_budget import GpuBudget

#: Replicas by role.
Counts = Mapping[str, int]


@frozen
class RoleState:
    """The replicas of a role: those `ready`, those `expected` if known, those verified to be starting (`pending`)."""

    ready: int = 0
    expected: int | None = None
    in_progress: bool = False
    pending: int = 0

    @property
    def is_scaling(self) -> bool:
        return self.in_progress or (self.expected is not None and self.expected != self.ready)


@frozen
class Thresholds:
    """When a role goes up or down by one measure of its engines; whether a value at `up`, or at `down`, counts."""

    up: float
    down: float
    at_up: bool = True
    at_down: bool = True

    def wants_up(self, value: float) -> bool:
        return value >= self.up if self.at_up else value > self.up

    def wants_down(self, value: float) -> bool:
        return value <= self.down if self.at_down else value < self.down


@frozen
class LoopSettings:
    """What the loops go by: latencies in seconds, `sensitivity` a share, most steps of the slow loop, and the loops.

    Without `thresholds`, by role, the fast loop goes by the target.
    """

    target: Target
    slow: bool = True
    fast: bool = False
    sensitivity: float = 0.8
    most_steps: int = 8
    nextn: int = 0
    thresholds: Mapping[str, Thresholds] = field(factory=dict)


@frozen
class Traffic:
    """Requests/s that are expected, and the mean tokens of a prompt and an answer."""

    rate: float
    prompt: float
    output: float


@define
class Loops:
    """The decisions of both loops for `roles`, in the order of the budget's, and what they remember.

    `engines` are the models of the roles, by which a target is met; thresholds need none.
    """

    roles: tuple[str, ...]
    settings: LoopSettings
    budget: GpuBudget
    engines: Mapping[str, EngineModel] = field(factory=dict)
    #: Of thresholds: tokens of a role's KV cache or context, to which its load is compared.
    sizes: Mapping[str, int] = field(factory=dict)
    aggregated: bool = False
    states: dict[str, RoleState] = field(factory=dict)
    bounds: dict[str, int] = field(factory=dict)
    rates: dict[str, float] = field(factory=dict)
    estimates: dict[str, float] = field(factory=dict)
    hit_rate: float | None = None
    accept_length: float = 1.0

    def __attrs_post_init__(self) -> None:
        self.bounds = dict.fromkeys(self.roles, 1)

    # What is known.

    def observe(self, hit_rate: float | None, accept_length: float | None) -> None:
        """Take the last shares of prefix hits and accepted drafts; None and what is not finite change nothing."""
        if hit_rate is not None and not isnan(hit_rate):
            self.hit_rate = hit_rate
        if accept_length is not None and isfinite(accept_length):
            self.accept_length = min(max(accept_length, 1.0), self.settings.nextn + 1.0)

    def floor(self, role: str) -> int:
        return self.budget.floors[self.roles.index(role)]

    @property
    def ready(self) -> tuple[int, ...]:
        return tuple(self.states[role].ready for role in self.roles)

    @property
    def is_pending(self) -> bool:
        return any(self.states[role].pending for role in self.roles)

    def _by_role(self, counts: Sequence[int]) -> dict[str, int]:
        return dict(zip(self.roles, counts, strict=True))

    # The slow loop.

    def go_slow(self, traffic: Traffic) -> Counts | None:
        """The replicas for *traffic*; with the fast loop on, they only become its lower bounds."""
        wishes = [self._replicas(role, traffic) for role in self.roles]
        ready = all(wish is not None for wish in wishes)
        # One role without a model holds the other too.
        wanted = [wish if ready and wish is not None else now for wish, now in zip(wishes, self.ready, strict=True)]
        steps, floors = self.settings.most_steps, self.budget.floors
        bounded = tuple(max(floor, min(max(wish, now - steps, 0), now + steps))
                        for wish, now, floor in zip(wanted, self.ready, floors, strict=True))
        if self.is_pending and not self.settings.fast:
            return self._slow_while_starting(bounded, ready)
        fitted = self._under_ceiling(bounded)
        if self.settings.fast:
            self.bounds = self._by_role(fitted)
            return None
        final = self._within_budget(fitted)
        return None if final == self.ready else self._by_role(final)

    def _replicas(self, role: str, traffic: Traffic) -> int | None:
        """The replicas of a role that carry *traffic* within the target; None while nobody knows."""
        if traffic.prompt <= 0 or (role == "decode" and traffic.output <= 0):
            return None
        shape = Shape(ceil(traffic.prompt), max(1, ceil(traffic.output)), self.hit_rate, self.accept_length)
        rate = self.engines[role].rate(shape, self.settings.target)
        if not rate:
            return None
        self.rates[role] = rate
        return max(ceil(traffic.rate / rate), self.floor(role))

    def _slow_while_starting(self, bounded: tuple[int, ...], ready: bool) -> Counts | None:
        """While replicas start, the slow loop holds what goes up."""
        if not ready:
            return None
        if len(self.roles) == 2:
            return self._reduced(self._by_role(bounded))
        if bounded[0] > self.ready[0]:
            return None
        fitted = self._within_budget(self._under_ceiling(bounded))
        return self._by_role(fitted)

    def _under_ceiling(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """*counts* under the upper limit of GPUs alone."""
        budget = self.budget.without_floor
        if len(counts) == 1:
            return budget.guard(self.ready, counts)[0]
        if self._is_below_floor:
            return budget.clamp(self._raised(counts))
        return budget.fit(self.ready, counts)

    def _within_budget(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        if len(counts) == 2 and self._is_below_floor:
            return self.budget.clamp(self._raised(counts))
        return self.budget.guard(self.ready, counts)[0]

    @property
    def _is_below_floor(self) -> bool:
        return any(now < floor for now, floor in zip(self.ready, self.budget.floors, strict=True))

    def _raised(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(max(count, floor) for count, floor in zip(counts, self.budget.floors, strict=True))

    # The fast loop.

    def go_fast(self, loads: Mapping[str, Sequence[Load]]) -> Counts | None:
        """One step up or down for each role, by the *loads* of its engines; None leaves all as it is."""
        loads = {role: loads[role] for role in self.roles if loads.get(role)}
        if not loads or (not self.is_pending and any(state.is_scaling for state in self.states.values())):
            return None
        if any(len(reports) != self.states[role].ready for role, reports in loads.items()):
            return None
        wishes = {role: self._step(role, reports) for role, reports in loads.items()}
        return self._fast_pair(wishes) if len(self.roles) == 2 else self._fast_single(wishes[self.roles[0]])

    def _fast_pair(self, wishes: Mapping[str, int | None]) -> Counts | None:
        if self.is_pending:  # what would go up keeps all that is starting
            wishes = {role: None if wish is not None and wish > self.states[role].ready else wish
                      for role, wish in wishes.items()}
        now = self._by_role(self.ready)
        wanted = {role: now[role] if (wish := wishes.get(role)) is None else wish for role in self.roles}
        raised = {role: max(count, self.bounds[role]) if self.settings.slow else count
                  for role, count in wanted.items()}
        final = self._raised(tuple(raised.values()))
        if self.is_pending:
            return self._reduced({role: count for role, count in self._by_role(final).items()
                                  if wishes.get(role) is not None})
        if raised != wanted:
            final = self._under_ceiling(final)
        final = self._within_budget(final)
        return None if final == self.ready else self._by_role(final)

    def _fast_single(self, wish: int | None) -> Counts | None:
        role, ready = self.roles[0], self.ready[0]
        if wish is None and self.aggregated and self.settings.thresholds:
            return None  # without a wish, not even a floor counts there
        wanted = ready if wish is None else wish
        if self.is_pending and wanted > ready:
            return None
        wanted = max(wanted, self.floor(role), self.bounds[role] if self.settings.slow else 0)
        final = self._within_budget((wanted,))
        if final == self.ready and (wish is None or not self.is_pending):
            return None
        return self._started({role: final[0]})

    def _step(self, role: str, loads: Sequence[Load]) -> int | None:
        """The replicas of *role* after one step; None for no change, or where nothing is known."""
        if not self.states[role].ready:
            return None
        if self.settings.thresholds:
            return self._by_thresholds(role, loads)
        if not self.engines[role].is_ready:
            return None
        if self.aggregated:
            return self._aggregated(loads)
        return (self._by_ttft if role == "prefill" else self._by_itl)(role, loads)

    # By thresholds.

    def _by_thresholds(self, role: str, loads: Sequence[Load]) -> int | None:
        ready, limits = self.states[role].ready, self.settings.thresholds[role]
        values = [self._measure(role, load) for load in loads]
        if any(map(limits.wants_up, values)):
            return ready + 1
        if not self._may_fall(role) or not all(map(limits.wants_down, values)):
            return None
        fewer = max(ready - 1, self.floor(role))
        # Not if those that stay would go up again with the load of the one that leaves.
        overfull = 0 < fewer < ready and max(values) * ready / fewer >= limits.up
        return ready if overfull else fewer

    def _measure(self, role: str, load: Load) -> float:
        """Queued tokens of prompts, as a share of the context if that is known, or the share of the KV cache."""
        if role == "prefill":
            return load.queued_prefill_tokens / self.sizes.get(role, 1)
        queued = load.queued_decode_kv + (load.queued_prefill_tokens if self.aggregated else 0)
        return (load.decode_kv + queued) / self.sizes[role]

    def _may_fall(self, role: str) -> bool:
        return self.states[role].ready > 1 or self.states[role].pending > 0

    # By the target.

    def _by_ttft(self, role: str, loads: Sequence[Load]) -> int | None:
        own = self.engines[role]
        estimates = [own.ttft(load, self.hit_rate) for load in loads]
        return self._decided("ttft", role, estimates, all(self._survives_ttft(role, load) for load in loads))

    def _survives_ttft(self, role: str, load: Load) -> bool:
        """Whether engines keep the target with the queue of the one that leaves; a pass of one's own is no queue."""
        own, more, target = self.engines[role], self._more(role), self.settings.target.ttft
        # Aggregated engines take over what decodes, too.
        decodes = more if self.aggregated else 1.0
        alone = own.ttft(load, self.hit_rate, 0.0, decodes, queued_decodes=self.aggregated)
        after = own.ttft(load, self.hit_rate, more, decodes, queued_decodes=self.aggregated)
        if alone is None or after is None or target is None:
            return False
        room = (target - alone) * self.settings.sensitivity
        return room > 0 and after - alone < room

    def _by_itl(self, role: str, loads: Sequence[Load]) -> int | None:
        own = self.engines[role]
        estimates = [None if (itl := own.itl(load)) is None else itl / self.accept_length for load in loads]
        return self._decided("itl", role, estimates, all(self._survives_itl(role, load) for load in loads))

    def _survives_itl(self, role: str, load: Load) -> bool:
        """Whether the KV of the engine that leaves fits the others, and they keep the target with it."""
        own, more, target = self.engines[role], self._more(role), self.settings.target.itl
        queued = load.queued_decode_kv + (load.queued_prefill_tokens if self.aggregated else 0)
        if int((load.decode_kv + queued) * more) >= own.limits.max_kv_tokens or target is None:
            return False
        itl = own.itl(load, decode_scale=more, prompts_as_kv=self.aggregated)
        return itl is not None and itl / self.accept_length < target * self.settings.sensitivity

    def _more(self, role: str) -> float:
        """How much more load an engine has when one of them leaves."""
        ready = self.states[role].ready
        return ready / (ready - 1) if ready > 1 else 1.0

    def _decided(self, latency: str, role: str, estimates: Sequence[float | None], survives: bool) -> int | None:
        known = [estimate for estimate in estimates if estimate is not None]
        target = {"ttft": self.settings.target.ttft, "itl": self.settings.target.itl}[latency]
        if not known or target is None:
            return None
        self.estimates[latency] = max(known)
        ready = self.states[role].ready
        if all(estimate > target for estimate in known):
            return ready + 1
        return max(ready - 1, self.floor(role)) if survives and self._may_fall(role) else None

    def _aggregated(self, loads: Sequence[Load]) -> int | None:
        """Up if either latency asks for it, down only if both allow it."""
        ready = self.ready[0]
        prompts, decodes = self._by_ttft("decode", loads), self._by_itl("decode", loads)
        if (prompts or 0) > ready or (decodes or 0) > ready:
            return ready + 1
        if prompts is not None and decodes is not None:
            return max(prompts, decodes)
        return None

    # While replicas are starting.

    def _reduced(self, wanted: Counts) -> Counts | None:
        """What of *wanted* cancels replicas that are starting, and keeps the lower limit of GPUs."""
        targets = self._started(wanted) or {}
        if not targets:
            return None
        states = [self.states[role] for role in self.roles]
        current = tuple(state.ready + (0 if role in targets else state.pending)
                        for role, state in zip(self.roles, states, strict=True))
        proposed = tuple(targets.get(role, now) for role, now in zip(self.roles, current, strict=True))
        fitted = self._by_role(self.budget.strict.fit(current, proposed))
        return self._started({role: fitted[role] for role in targets})

    def _started(self, wanted: Counts) -> Counts | None:
        """The counts that take back a start, while there is one; all of them if there is none."""
        if not self.is_pending:
            return wanted
        kept = {role: count for role, count in wanted.items()
                if count <= self.states[role].ready and count < self.states[role].ready + self.states[role].pending}
        return kept or None


