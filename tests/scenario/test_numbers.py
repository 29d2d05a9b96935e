"""Every number that a scenario can have: far too large, negative, infinite or no number at all.

Each is refused by its key, or runs without a warning.
"""

import tomllib
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from math import inf, nan
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs
import pytest

from ksim import Scenario, simulate
from ksim.foundation import catalog
from ksim.foundation.errors import KsimError

VALUES = (0, -1, 1e308, inf, nan, 10**19, 10**12)
ONE = {"kind": "fixed", "value": 1}
BASE = {"model": "llama-3.2-1b", "gpu": "h200", "serve": {"max_model_len": 64, "num_gpu_blocks_override": 64},
        "oracle": {"name": "roofline"},
        "workload": {"synthetic": {"count": 2, "arrivals": {"process": "poisson", "rate": 10.0},
                                   "prompt": {"kind": "fixed", "value": 20}, "output": {"kind": "fixed", "value": 2}}}}
#: What must stand beside a key for it to have an effect.
BESIDE = {
    "workload.synthetic.arrivals.burstiness": {"workload.synthetic.arrivals.process": "gamma"},
    "workload.synthetic.sessions": {"workload.synthetic.sessions.turns": ONE},
    "workload.synthetic.adapters": {"workload.synthetic.adapters.count": 2, "serve.enable_lora": True,
                                    "serve.lora_modules": [{"name": "adapter", "count": 2}]},
    "workload.synthetic.prefixes": {"workload.synthetic.prefixes.groups": 2, "workload.synthetic.prefixes.tokens": 16},
    "serve.overlap": {"serve.tensor_parallel_size": 2, "serve.overlap_stages": 2, "serve.overlap_sms": 8},
    "serve.num_redundant_experts": {"model": "qwen3-30b-a3b", "serve.enable_expert_parallel": True,
                                    "serve.enable_eplb": True, "serve.tensor_parallel_size": 2},
    "serve.fi_allreduce_fusion": {"serve.fuse_allreduce_rms": True, "serve.tensor_parallel_size": 2},
    "serve.kv_transfer_config": {"pools.p.role": "prefill", "pools.d.role": "decode"},
    "serve.speculative_config": {"serve.speculative_config": {
        "method": "ngram", "num_speculative_tokens": 2, "acceptance": {"name": "geometric", "rate": 0.5}}},
    "pair_router": {"pools.p.role": "prefill", "pools.d.role": "both"},
    "pools.NAME": {"pools.NAME.role": "both"},
    "routing": {"model": "qwen3-30b-a3b"},
}
#: The folder of plug-ins of each choice.
PLUGINS = {"serve.scheduling_policy": "scheduling.policies", "serve.admission": "scheduling.admissions",
           "serve.eviction": "kv.cache.evictions", "router": "cluster.routers", "power.governor": "engine.governors",
           "oracle": "oracles", "pair_router": "cluster.pair_routers",
           "serve.speculative_config.acceptance": "scheduling.acceptances"}
#: What a governor's answers are called.
NAMES = {f"power.governor.{phase}{cap}": word for phase in ("prefill", "decode")
         for cap, word in (("", "clock"), ("_cap", "cap"))}
#: Parts of keys that may be times, which need a unit.
TIMES = ("slo", "sleep_after", "replay", "think", "ttft", "per_token")
#: Options of distributions, where one stands for all.
FORMULAS: dict[str, dict[str, float]] = {
    "fixed": {"value": 2}, "uniform": {"low": 1, "high": 2}, "exponential": {"mean": 2},
    "lognormal": {"sigma": 1.0, "median": 2},
}


def members(kind: Any) -> tuple[Any, ...]:
    """The types in a union, without None, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def keys(cls: type, where: str = "") -> Iterator[tuple[str, bool]]:
    """The dotted keys of all numbers in tables of *cls*, and whether it is one in a list."""
    for field in attrs.fields(cls):
        key = f"{where}{field.name}"
        for kind in members(get_type_hints(cls)[field.name]):
            if kind in (int, float):
                yield key, False
            elif get_origin(kind) is tuple and get_args(kind)[0] in (int, float):
                yield key, True
            elif attrs.has(kind) and "kind" not in attrs.fields_dict(kind) and kind.__name__ != "Choice":
                yield from keys(kind, f"{key}.")
            elif get_origin(kind) is Mapping and attrs.has(get_args(kind)[1]):
                yield from keys(get_args(kind)[1], f"{key}.NAME.")


def of_plugins() -> Iterator[tuple[str, dict[str, Any]]]:
    for choice, folder in PLUGINS.items():
        for name in catalog.names(folder):
            made = catalog.find(folder, name)
            for field in attrs.fields(made) if attrs.has(made) else ():
                if field.name == field.alias and {int, float} & set(members(get_type_hints(made)[field.name])):
                    yield f"{choice}.{field.name}", {f"{choice}.name": name}


def of_formulas() -> Iterator[tuple[str, dict[str, Any]]]:
    for place in ("prompt", "output", "sessions.turns", "sessions.think"):
        for kind, options in FORMULAS.items():
            for option in options:
                whole = {"kind": kind, **({name: f"{value} s" if name != "sigma" else value
                                           for name, value in options.items()} if "think" in place else options)}
                yield f"workload.synthetic.{place}.{option}", {f"workload.synthetic.{place}": whole}


CASES = [(key, {"workload": {"replay": {"path": "trace.csv"}}} if "replay" in key else {}, listed)
         for key, listed in keys(Scenario) if not key.startswith("workload.mix.NAME.")]
CASES += [(key, beside, False) for key, beside in (*of_plugins(), *of_formulas())]
CASES += [("routing.exponent", {"routing.name": "zipf"}, False), ("workload.synthetic.tenants.a", {}, False)]


def test_all_numbers_are_found():
    found = {key for key, _, _ in CASES}
    assert {"serve.max_num_seqs", "workload.synthetic.count", "energy.pue", "power.cap", "slo.ttft", "seed", "nodes",
            "workload.synthetic.priorities", "serve.cudagraph_capture_sizes"} <= found
    assert len(found) > 80


@pytest.mark.parametrize(("key", "beside", "listed"), CASES,
                         ids=[f"{key} {beside.get(key.rpartition('.')[0] + '.name', '')}" for key, beside, _ in CASES])
def test_an_extreme_number_is_refused_by_its_key_or_runs_without_a_warning(key, beside, listed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text("arrival,prompt,output\n0,20,2\n0.1,20,2\n")
    for value in VALUES:
        for written in (value, f"{value} s") if any(word in key for word in TIMES) else (value,):
            run(key, beside, [written] if listed else written)


def run(key: str, beside: dict[str, Any], value: Any) -> None:
    table = deepcopy(BASE)
    for prefix, more in BESIDE.items():
        if key.startswith(prefix):
            put(table, more)
    put(table, {**beside, key: value})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            scenario = Scenario.of(table)
            assert simulate(scenario).summary["duration"] < inf
            assert Scenario.of(tomllib.loads(scenario.to_toml())) == scenario
        except KsimError as error:
            name = key.rpartition(".")[2]
            assert name in str(error) or NAMES.get(key, name) in str(error), f"{value}: {error}"


def put(table: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        *parents, last = key.split(".")
        holder = table
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[last] = deepcopy(value)
