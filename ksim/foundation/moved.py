"""Old places of modules: plug-ins that import from them work for one more release, with a warning.

`MOVED` has the modules and packages that went elsewhere after 0.1, `RENAMED` the names that changed within a module.
"""

import sys
import warnings
from collections.abc import MutableSequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["MOVED", "RENAMED", "install", "place_of", "renamed"]

#: Where packages and modules are now, by where they were; what lies in a package went with it.
MOVED = {
    "ksim.memory": "ksim.kv_cache",
    "ksim.memory.blocks": "ksim.kv_cache.block_pool",
    "ksim.memory.kv_cache": "ksim.kv_cache.block_cache",
    "ksim.memory.order": "ksim.kv_cache.eviction_queue",
    "ksim.memory.radix": "ksim.kv_cache.block_trie",
    "ksim.memory.ranked": "ksim.kv_cache.block_pool",
    "ksim.memory.runs": "ksim.kv_cache.radix_tree",
    "ksim.runtime": "ksim.engine",
    "ksim.cost.oracles": "ksim.oracles",
    "ksim.cost.answers": "ksim.oracles.answers",
    "ksim.cost.efficiency": "ksim.oracles.efficiency",
    **{f"ksim.cost.efficiency.{old}": f"ksim.oracles.efficiency.{new}" for old, new in (
        ("estimates", "profiled"), ("gemm_further", "gemm_tiles"), ("pricing", "fitted"), ("products", "models"),
        ("region", "fitted"), ("spread", "fitted"), ("stacked", "pointwise"))},
    "ksim.cost.library": "ksim.oracles.efficiency.scaled",
    "ksim.cost.collectives": "ksim.network.collectives",
    **{f"ksim.cost.{name}": f"ksim.network.{name}" for name in ("fabric", "network", "protocols", "routes")},
    "ksim.results.perfetto": "ksim.report.perfetto",
    "ksim.results.plots": "ksim.report.plots",
    "ksim.results.plots.roofs": "ksim.report.plots.roofline",
    "ksim.results.refusals": "ksim.results.totals",
    "ksim.results.result": "ksim.report.result",
    "ksim.results.runs": "ksim.results.tokens",
    "ksim.results.streaming.sink": "ksim.results.streaming",
    **{f"ksim.studies.{old}": f"ksim.simulation.{new}" for old, new in (
        ("capped", "power_cap"), ("extent", "workload_size"), ("families", "models"), ("fits", "model_card"),
        ("lookup", "hardware"), ("modelcard", "model_card"), ("priced", "layer_cost"),
        ("simulation", "simulate"), ("sustained", "layer"))},
    "ksim.studies.requirement": "ksim.study.objectives",
    "ksim.studies.grid": "ksim.study.grid",
    "ksim.studies.pareto": "ksim.study.pareto",
    "ksim.simulation.grid": "ksim.study.grid",
    "ksim.simulation.pareto": "ksim.study.pareto",
    "ksim.studies.validation": "ksim.validation",
    "ksim.studies": "ksim.simulation",
    "ksim.testing.fault": "ksim.testing.counter_example",
    "ksim.testing.invariants.blocks": "ksim.testing.invariants.limits",
    "ksim.testing.invariants.order": "ksim.testing.invariants.progress",
    "ksim.simulation.parallel_replicas": "ksim.simulation.simulate",
    "ksim.specs.deployment": "ksim.specs.settings",
    "ksim.specs.experts": "ksim.specs.shard",
    "ksim.scheduling.assignment": "ksim.scheduling.schedule",
    "ksim.cost.launches": "ksim.cost.graphs",
    "ksim.cost.spans": "ksim.cost.pricer",
    "ksim.flow.load": "ksim.flow.costs",
    "ksim.flow.spans": "ksim.flow.kernels",
    "ksim.flow.stretch": "ksim.flow.step_block",
    "ksim.flow.timeline": "ksim.flow.steps",
    "ksim.workload.dates": "ksim.workload.fields",
    "ksim.workload.ledger": "ksim.workload.row",
    "ksim.compute.einsum": "ksim.compute.model_ops",
    "ksim.compute.kept": "ksim.compute.notation",
    "ksim.compute.latent_blocks": "ksim.compute.latent",
    "ksim.compute.layers": "ksim.compute.graph",
    "ksim.compute.linear_blocks": "ksim.compute.linear",
    "ksim.compute.loads": "ksim.compute.expert_rows",
    "ksim.compute.parts": "ksim.compute.breakdown",
}

#: New names by module, as it is called now, and old name; a name that is in another module now is ``module:name``.
RENAMED: dict[str, dict[str, str]] = {
    "ksim.compute.model_ops": {"Einsum": "op", "Map": "pointwise", "Attend": "attend", "Gather": "Lookup",
                               "Communicate": "communicate"},
    "ksim.compute.graph": {"Layer": "BatchDependent", "waits": "is_batch_dependent"},
    "ksim.compute.expert_rows": {"loads": "expert_rows", "average": "average_rank", "fullest": "fullest_rank",
                                 "Loads": "ExpertRows", "Averages": "MeanExpertRows"},
    "ksim.compute.breakdown": {"Kind": "AttentionKind", "Part": "ModelPart", "kinds": "attention_kinds",
                               "parts": "model_parts"},
    "ksim.oracles.efficiency.profiled": {name: f"ksim.oracles.efficiency.profile:{name}"
                                         for name in ("PROFILES", "shipped", "without")},
    "ksim.oracles.efficiency.scaled": {"Library": "ScaledOracle"},
    "ksim.oracles.waves": {"REACH": "PEAK_SHARES", "Reach": "PeakShares"},
    "ksim.scheduling.schedule": {"Assignment": "Schedule", "Grant": "ScheduledTokens"},
    "ksim.specs.settings": {"Shard": "ksim.specs.shard:Shard"},
    "ksim.kv_cache.block_cache": {"Holding": "BlockTable", "KVCache": "BlockCache"},
    "ksim.kv_cache.block_pool": {"RankedPool": "EvictionPool"},
    "ksim.kv_cache.block_trie": {"Node": "BlockNode", "PrefixTree": "BlockTrie"},
    "ksim.kv_cache.cache": {"Hit": "PrefixHit", "Holding": "BlockTable"},
    "ksim.kv_cache.eviction_queue": {"EvictionOrder": "EvictionQueue"},
    "ksim.kv_cache.extents": {"HeldRun": "ExtentNode"},
    "ksim.kv_cache.radix_tree": {"Run": "RadixNode", "RunTree": "RadixTree", "agreement": "common_tokens"},
    "ksim.flow.costs": {"Load": "StepSummary"},
    "ksim.flow.kernels": {"Kind": "KernelKind", "Spans": "KernelColumns"},
    "ksim.flow.step_block": {"Lanes": "StepColumns", "Paces": "ClockScaling", "Stretch": "StepBlock"},
    "ksim.flow.steps": {"Lap": "PricedBlock", "Pace": "ClockScaling", "Paced": "Scalable", "Span": "KernelCost",
                        "Timeline": "StepCost"},
    "ksim.kv_cache.sglang": {"LockedRun": "LockedNode", "Slots": "SlotPool"},
    "ksim.simulation.assembly": {"Site": "Deployment"},
    "ksim.simulation.hardware": {
        **{name: f"ksim.simulation.models:{name}" for name in ("model_of", "model_of_table")},
        **{name: f"ksim.simulation.plugins:{name}" for name in ("oracle_choice", "plugin")}},
    "ksim.simulation.layer_cost": {"Priced": "LayerCost", "Row": "LaunchCost"},
    "ksim.simulation.models": {"alike": "lookalike"},
    "ksim.study.pareto": {
        "Point": "ParetoPoint", "judge": "rank",
        **{name: f"ksim.study.objectives:{name}" for name in ("Objective", "Requirement", "measures")}},
    "ksim.simulation.portability": {"Point": "KernelPoint", "points": "kernel_points", "on": "moved_to"},
}


def renamed(old: str, new: str) -> Any:
    """A property for the *old* name of a member, which works for one more release, with a warning."""
    def member(self: Any) -> Any:
        warnings.warn(f"{type(self).__name__}.{old} is {new} now; the old name works until ksim 0.3", FutureWarning,
                      stacklevel=2)
        return getattr(self, new)
    return property(member)


def place_of(name: str) -> str | None:
    """Where the module that was *name* is now; None for one that stayed."""
    old = name
    while old not in MOVED:
        old, _, _ = old.rpartition(".")
        if not old:
            return None
    return MOVED[old] + name[len(old):]


class _Alias(ModuleType):
    """A module under its old name."""

    def __init__(self, name: str, now: str) -> None:
        super().__init__(name)
        self.__path__: MutableSequence[str] = []  # so that its parts are looked for here, too
        self._now = now

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        home, _, now = RENAMED.get(self._now, {}).get(name, name).rpartition(":")
        return getattr(import_module(home or self._now), now)


class _Mover:
    """Finds and loads modules by their old names: a meta path finder, without its base class, whose import is slow."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith("ksim.") or place_of(fullname) is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        now = place_of(spec.name)
        assert now is not None, "only modules that moved are found"
        warnings.warn(f"{spec.name} is {now} now; the old name works until ksim 0.3", FutureWarning, stacklevel=2)
        import_module(now)
        return _Alias(spec.name, now)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: an alias has all that it needs."""


def install() -> None:
    """Let modules be imported by their old names."""
    if not any(isinstance(finder, _Mover) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Mover())
