"""Dynamo's planner, 1.6: replicas of prefill and decode from forecasts of the load and from what engines report."""

from collections.abc import Mapping, Sequence
from math import gcd, isfinite, nan
from typing import ClassVar

from attrs import define, field, frozen
from attrs.validators import and_, ge, gt, in_, le, optional

from ksim.autoscaling import Decision, EngineLimits, Load, Observation, PoolView
from ksim.autoscaling.dynamo_engine import EngineModel, LearntPasses, PassModel, Target
from ksim.autoscaling.dynamo_loops import Counts, Loops, LoopSettings, RoleState, Thresholds, Traffic
from ksim.autoscaling.forecasts import FORECASTS, Forecast, ForecastSettings, PredictorOptions
from ksim.autoscaling.gpu_budget import GpuBudget
from ksim.foundation.errors import ConfigError

__all__ = ["DynamoPlanner"]

#: Thresholds of the targets `throughput` and `latency`: of prefill, queued tokens per context; of KV caches, their use.
_TARGETS = {"throughput": {"prefill": Thresholds(1.0, 0.1, at_down=False),
                           "decode": Thresholds(1.0, 0.6, at_up=False, at_down=False)},
            "latency": {"prefill": Thresholds(0.1, 0.0),
                        "decode": Thresholds(0.4, 0.1, at_up=False, at_down=False)}}
_ROLES = {"disagg": ("prefill", "decode"), "prefill": ("prefill",), "decode": ("decode",), "agg": ("decode",)}


@frozen
class TrafficSeen:
    """Requests of an interval of `duration` seconds, their mean tokens, and shares of hits and accepted drafts."""

    duration: float
    requests: float
    prompt: float
    output: float
    hit_rate: float | None = None
    accept_length: float | None = None


@define
class _Lookout:
    """Forecasts of requests, prompts and answers, each on its own."""

    settings: ForecastSettings
    name: str
    _rows: list[Forecast] = field(init=False)
    _last: list[float | None] = field(init=False)
    _live: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._rows = [FORECASTS[self.name](self.settings) for _ in range(3)]
        self._last = [None, None]

    def warm(self, history: Sequence[TrafficSeen]) -> None:
        """Learn from what was before the start."""
        for seen in history:
            self.observe(seen)
        for row in self._rows:
            row.go_live()
        self._live = False

    def observe(self, seen: TrafficSeen) -> None:
        """An interval without requests has no lengths: the last ones stay."""
        self._rows[0].add(seen.requests)
        lengths: list[float] = [seen.prompt, seen.output]
        if seen.requests > 0:
            self._live = True
            self._last = [length if isfinite(length) else last
                          for length, last in zip(lengths, self._last, strict=True)]
        elif seen.requests == 0 and self._live:
            lengths = [last or 0.0 for last in self._last]
        for row, length in zip(self._rows[1:], lengths, strict=True):
            if isfinite(length):
                row.add(length)

    def forecast(self) -> tuple[float, float, float]:
        """Requests of the next interval, tokens of a prompt and of an answer."""
        requests, prompt, output = (row.next() for row in self._rows)
        return requests, prompt, output


@define
class Pipeline:
    """Both loops and the checks behind them, tick by tick (dynamo/planner/plugins/orchestrator/engine_adapter.py)."""

    loops: Loops
    lookout: _Lookout
    fast_interval: float
    forecast: tuple[float, float, float] | None = None
    _wish: Counts | None = None
    _wish_of: tuple[RoleState, ...] = ()
    _wished_at: float = 0.0

    def tick(self, now: float, states: Mapping[str, RoleState], slow: TrafficSeen | None,
             loads: Mapping[str, Sequence[Load]] | None) -> Counts | None:
        """The replicas by role that are wanted at *now*, in seconds; None leaves all as it is.

        *slow* is the traffic if the slow loop is due, and *loads* by role, for each engine, if the fast one is.
        """
        loops = self.loops
        loops.states = dict(states)
        loops.rates, loops.estimates, self.forecast = {}, {}, None
        proposed: Counts | None = None
        for role, reports in (loads or {}).items():
            if role in loops.engines:
                loops.engines[role].observe(reports)
        if slow is not None:
            proposed = self._slow(slow)
        if loads is not None and loops.settings.fast:
            proposed = loops.go_fast(loads)
        if loops.is_pending:
            return self._cancelled(now, proposed, slow is not None or (loads is not None and loops.settings.fast))
        self._wish = None
        return self._checked(proposed)

    def _slow(self, slow: TrafficSeen) -> Counts | None:
        if not self.loops.settings.slow:  # the fast loop alone takes no more of it
            self.loops.observe(slow.hit_rate, slow.accept_length)
            return None
        self.lookout.observe(slow)
        self.loops.observe(slow.hit_rate, slow.accept_length)
        self.forecast = requests, prompt, output = self.lookout.forecast()
        return self.loops.go_slow(Traffic(requests / slow.duration, prompt, output)) if slow.duration > 0 else None

    def _checked(self, proposed: Counts | None) -> Counts | None:
        """What is proposed within the budget; floors and a budget that is left are repaired at any tick."""
        loops, budget = self.loops, self.loops.budget
        now = loops.ready
        counts = tuple({**dict(zip(loops.roles, now, strict=True)), **(proposed or {})}.values())
        settled = not any(state.is_scaling for state in loops.states.values())
        below = {role for role, count in zip(loops.roles, now, strict=True) if settled and count < loops.floor(role)}
        raised = tuple(max(count, floor) for count, floor in zip(counts, budget.floors, strict=True))
        if counts == now and not below and not (settled and not budget.holds(now)):
            return None
        final = budget.clamp(raised)
        # A repair of floors names the roles that change, and those that were asked for.
        return None if final == now else {
            role: count for role, count, old in zip(loops.roles, final, now, strict=True)
            if not below or count != old or role in below or role in (proposed or {})}

    def _cancelled(self, now: float, proposed: Counts | None, asked: bool) -> Counts | None:
        """A start is taken back after the same wish at two looks, a fast interval apart at least."""
        loops = self.loops
        states = tuple(loops.states[role] for role in loops.roles)
        targets = {}
        for role, state in zip(loops.roles, states, strict=True):
            if proposed is not None and role in proposed:
                target = max(proposed[role], loops.floor(role))
                if target <= state.ready and target < state.ready + state.pending:
                    targets[role] = target
        if not targets:
            if asked or states != self._wish_of:
                self._wish = None
            return None
        total = tuple(targets.get(role, state.ready + state.pending)
                      for role, state in zip(loops.roles, states, strict=True))
        used = loops.budget.total(total)
        if used < loops.budget.least or 0 <= loops.budget.most < used:
            self._wish = None
            return None
        if targets != self._wish or states != self._wish_of:
            self._wish, self._wish_of, self._wished_at = targets, states, now
            return None
        return targets if now - self._wished_at >= self.fast_interval else None


def _seconds(milliseconds: float) -> float:
    return milliseconds / 1000.0


@define
class DynamoPlanner(PredictorOptions):
    """The slow loop forecasts requests and their lengths; an engine's rate within `ttft_ms` and `itl_ms` gives the
    replicas.  The fast loop moves a role by one, by estimates of the same latencies or by thresholds.

    `optimization_target` sla has the slow loop on by default and the fast one off; throughput and latency have the fast
    one alone, by thresholds of queues and KV caches, and load has those of one's own.  Options are called as there.
    How long passes take is learnt from what engines report of them.
    """

    source: ClassVar[str] = "github.com/ai-dynamo/dynamo, dynamo/planner, 1.6.1"
    passes: ClassVar[bool] = True
    mode: str = field(default="disagg", validator=in_(tuple(_ROLES)))
    optimization_target: str = field(default="throughput", validator=in_(("sla", "throughput", "latency", "load")))
    ttft_ms: float = field(default=500.0, validator=gt(0))
    itl_ms: float = field(default=50.0, validator=gt(0))
    kalman_min_points: int = field(default=5, validator=gt(0))
    throughput_adjustment_interval_seconds: int = field(default=180, validator=gt(0))
    load_adjustment_interval_seconds: int = field(default=5, validator=gt(0))
    max_throughput_scaling_replicas: int = field(default=8, validator=gt(0))
    max_gpu_budget: int = field(default=8, validator=ge(-1))
    min_gpu_budget: int = field(default=-1, validator=ge(-1))
    min_endpoint: int = field(default=1, validator=ge(0))
    prefill_min_endpoint: int | None = field(default=None, validator=optional(ge(0)))
    decode_min_endpoint: int | None = field(default=None, validator=optional(ge(0)))
    enable_throughput_scaling: bool = True
    enable_load_scaling: bool = False
    load_scaling_down_sensitivity: float = field(default=80.0, validator=and_(ge(0), le(100)))
    prefill_scale_up_queue_tokens: int | None = field(default=None, validator=optional(gt(0)))
    prefill_scale_down_queue_tokens: int | None = field(default=None, validator=optional(ge(0)))
    decode_scale_up_kv_rate: float | None = field(default=None, validator=optional(gt(0)))
    decode_scale_down_kv_rate: float | None = field(default=None, validator=optional(ge(0)))
    speculative_nextn: int = field(default=0, validator=ge(0))
    _pipeline: Pipeline | None = field(default=None, init=False)
    _seen: list[TrafficSeen] = field(factory=list, init=False)
    _due: dict[str, float] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        if self.optimization_target != "sla":
            self.enable_load_scaling, self.enable_throughput_scaling = True, False
        if not (self.enable_load_scaling or self.enable_throughput_scaling):
            raise ValueError("enable_throughput_scaling and enable_load_scaling are both false: nothing would scale")
        if self.max_gpu_budget >= 0 and self.min_gpu_budget > self.max_gpu_budget:
            raise ValueError(f"min_gpu_budget {self.min_gpu_budget} is above max_gpu_budget {self.max_gpu_budget}")
        if self.enable_load_scaling and self.enable_throughput_scaling and (
                self.load_adjustment_interval_seconds >= self.throughput_adjustment_interval_seconds):
            raise ValueError("load_adjustment_interval_seconds must be below throughput_adjustment_interval_seconds")
        for role in self.roles:
            if self.optimization_target == "load":
                self._own_thresholds(role)
        if self.enable_throughput_scaling:
            FORECASTS[self.load_predictor](ForecastSettings())  # which may need a library that is not there

    # The parts.

    @property
    def roles(self) -> tuple[str, ...]:
        """What is scaled; aggregated engines count as decode."""
        return _ROLES[self.mode]

    @property
    def interval(self) -> float:
        """Seconds between ticks: the greatest common divisor of the loops' intervals."""
        if not self.enable_throughput_scaling:
            return float(self.load_adjustment_interval_seconds)
        return float(gcd(self.throughput_adjustment_interval_seconds, self.load_adjustment_interval_seconds))

    def _floor(self, role: str) -> int:
        own = self.prefill_min_endpoint if role == "prefill" else self.decode_min_endpoint
        return self.min_endpoint if own is None else own

    def _own_thresholds(self, role: str) -> Thresholds:
        """Those of the target `load`, which count when they are met; raises ValueError where they are missing."""
        kind, unit = ("prefill", "queue_tokens") if role == "prefill" else ("decode", "kv_rate")
        up, down = (getattr(self, f"{kind}_scale_{way}_{unit}") for way in ("up", "down"))
        if up is None or down is None:
            raise ValueError(f"optimization_target load needs {kind}_scale_up_{unit} and {kind}_scale_down_{unit}")
        if up <= down:
            raise ValueError(f"{kind}_scale_up_{unit} must be above {kind}_scale_down_{unit}")
        return Thresholds(up, down) if role == "prefill" else Thresholds(up / 100.0, down / 100.0)

    def budget(self, costs: Sequence[int]) -> GpuBudget:
        """The budget for replicas that take so many GPUs each."""
        return GpuBudget(tuple(costs), tuple(map(self._floor, self.roles)), self.min_gpu_budget, self.max_gpu_budget)

    def settings(self) -> LoopSettings:
        by_sla = self.optimization_target == "sla"
        thresholds = {} if by_sla else {
            role: self._own_thresholds(role) if self.optimization_target == "load"
            else _TARGETS[self.optimization_target][role] for role in self.roles}
        return LoopSettings(Target(*self._target()), self.enable_throughput_scaling, self.enable_load_scaling,
                            self.load_scaling_down_sensitivity / 100.0, self.max_throughput_scaling_replicas,
                            self.speculative_nextn, thresholds)

    def _target(self) -> tuple[float, float]:
        return _seconds(self.ttft_ms), _seconds(self.itl_ms)

    def pipeline(self, costs: Sequence[int], limits: Mapping[str, EngineLimits],
                 passes: Mapping[str, PassModel]) -> Pipeline:
        """The planner for engines of each role: GPUs of a replica, limits, and models of passes."""
        kinds = {role: "aggregated" if self.mode == "agg" else role for role in self.roles}
        engines = {role: EngineModel(kinds[role], limits[role], passes[role]) for role in self.roles}
        sizes = {role: limits[role].context_length if role == "prefill" else limits[role].max_kv_tokens
                 for role in self.roles}
        if self.optimization_target == "load":
            sizes.pop("prefill", None)
        loops = Loops(self.roles, self.settings(), self.budget(costs),
                      engines if self.optimization_target == "sla" else {}, sizes, self.mode == "agg")
        forecasts = self.forecast_settings(self.throughput_adjustment_interval_seconds, self.kalman_min_points)
        name = self.load_predictor if self.enable_throughput_scaling else "constant"
        return Pipeline(loops, _Lookout(forecasts, name), self.load_adjustment_interval_seconds)

    # What it sees in a fleet.

    def decide(self, seen: Observation) -> Decision | None:
        pools = self._pools(seen)
        if self._pipeline is None:  # the first tick comes after an interval
            self._pipeline = self._made(pools)
            self._due = dict.fromkeys(("slow", "fast"), seen.now)
            return None
        self._seen.append(_traffic(pools, self.interval))
        loads = self._loads(pools) if self._is_due("fast", self.load_adjustment_interval_seconds, seen.now) else None
        drains = any(pool.draining for pool in pools.values())
        states = {role: _state(pool, drains) for role, pool in pools.items()}
        wanted = self._pipeline.tick(seen.now, states, self._due_traffic(seen.now), loads)
        if wanted is None:
            return None
        names = dict(zip(pools, self._names(seen), strict=True))
        return Decision({names[role]: count for role, count in wanted.items()}, self._words(wanted))

    def _due_traffic(self, now: float) -> TrafficSeen | None:
        """The traffic of a whole interval if the slow loop is due; without that loop, what the fast one asks for."""
        if not self.enable_throughput_scaling:
            return self._whole(self.interval)
        interval = self.throughput_adjustment_interval_seconds
        return self._whole(interval) if self._is_due("slow", interval, now) else None

    def _loads(self, pools: Mapping[str, PoolView]) -> dict[str, list[Load]]:
        """What each engine reports."""
        return {role: [replica.load for replica in pool.ready if replica.load is not None]
                for role, pool in pools.items()}

    def _names(self, seen: Observation) -> list[str]:
        """The pools by role: called as the role is, or the only one."""
        if len(self.roles) == 1 and len(seen.pools) == 1:
            return list(seen.pools)
        if missing := [role for role in self.roles if role not in seen.pools]:
            raise ConfigError("autoscaler", f"dynamo_planner in mode {self.mode} scales pools called"
                                            f" {' and '.join(self.roles)}; there is no {missing[0]}")
        return list(self.roles)

    def _pools(self, seen: Observation) -> dict[str, PoolView]:
        return {role: seen.pools[name] for role, name in zip(self.roles, self._names(seen), strict=True)}

    def _made(self, pools: Mapping[str, PoolView]) -> Pipeline:
        budget = self.budget([pool.gpus for pool in pools.values()])
        if 0 <= budget.most < budget.total(budget.floors):
            raise ConfigError("autoscaler.max_gpu_budget", f"{budget.most} GPUs cannot hold the fewest replicas, which"
                                                           f" take {budget.total(budget.floors)}")
        return self.pipeline(budget.costs, {role: pool.limits for role, pool in pools.items()},
                             {role: LearntPasses() for role in self.roles})

    def _is_due(self, loop: str, interval: float, now: float) -> bool:
        if now - self._due[loop] < interval - 1e-9:
            return False
        self._due[loop] = now
        return True

    def _whole(self, interval: float) -> TrafficSeen:
        """The traffic of a whole interval, of all that was seen since the last one."""
        parts, self._seen = self._seen, []
        requests = sum(part.requests for part in parts)

        def mean(key: str) -> float:
            weighted = [(part.requests, getattr(part, key)) for part in parts if part.requests]
            return sum(count * value for count, value in weighted) / requests if requests else nan

        hits = [part.hit_rate for part in parts if part.hit_rate is not None]
        accepted = [part.accept_length for part in parts if part.accept_length is not None]
        return TrafficSeen(interval, requests, mean("prompt"), mean("output"), hits[-1] if hits else None,
                           accepted[-1] if accepted else None)

    def _words(self, wanted: Counts) -> str:
        pipeline = self._pipeline
        said = ", ".join(f"{role} {count}" for role, count in wanted.items())
        if pipeline is not None and pipeline.forecast is not None:
            requests, prompt, output = pipeline.forecast
            return (f"{said}: {requests:.4g} requests of {prompt:.4g} and {output:.4g} tokens are expected in"
                    f" {self.throughput_adjustment_interval_seconds} s")
        estimates = {} if pipeline is None else pipeline.loops.estimates
        seen = ", ".join(f"{name} {1000 * value:.4g} ms" for name, value in estimates.items())
        return f"{said}: estimated {seen}" if seen else said


def _state(pool: PoolView, drains: bool) -> RoleState:
    """What the platform says of a pool; replicas that start are verified where nothing *drains*, in any pool."""
    ready = len(pool.ready)
    busy = bool(pool.starting or pool.draining)
    return RoleState(ready, None if busy else ready, busy, 0 if drains else pool.starting)


def _traffic(pools: Mapping[str, PoolView], interval: float) -> TrafficSeen:
    """The traffic since the last look: requests and prompts where they come first, answers where they end."""
    first, last = next(iter(pools.values())), [*pools.values()][-1]
    return TrafficSeen(interval, float(first.arrivals), first.input_tokens, last.output_tokens, first.hit_rate,
                       last.accept_length)
