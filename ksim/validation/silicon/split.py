"""From a disaggregated run to a scenario with a pool of engines that prefill and one of engines that decode."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from math import ceil, log2
from typing import Any

from attrs import evolve, field, frozen

from ksim.foundation import catalog
from ksim.simulation.hardware import system_of
from ksim.simulation.packing import pack
from ksim.simulation.scenario import Scenario
from ksim.validation.silicon import assumptions, recipes
from ksim.validation.silicon.assumptions import NotRun
from ksim.validation.silicon.rows import Row
from ksim.validation.silicon.workers import Workers

#: Waves of prompts of a run, and the fewest of a run that is cut: dozens of ranks make each of them dear.
_WAVES, _FEWEST = 10, 4
#: How TensorRT-LLM's recipes are called: workers that prefill and that decode, the shape of the latter, the most
#: sequences of a rank, and how many tokens it drafts for each.
_NAME = re.compile(r"ctx(\d+)_gen(\d+)_(d?t?e?p\d+)_batch(\d+)(?:_mtp(\d+))?")


@frozen
class Pools:
    """Settings by pool: `serve` of both, then those of the one that prefills and the one that decodes.

    `chunk` tokens are the most that a prefilling worker takes at once; its ranks share them.  `engine` is a release.
    """

    text: str
    when: Mapping[str, tuple[str, ...]] = field(factory=dict)
    serve: Mapping[str, Any] = field(factory=dict)
    prefill: Mapping[str, Any] = field(factory=dict)
    decode: Mapping[str, Any] = field(factory=dict)
    chunk: int | None = None
    engine: str = ""


@frozen
class Batches:
    """Recipes by their names, each with the concurrencies that it was run with."""

    when: Mapping[str, tuple[str, ...]]
    names: Mapping[str, tuple[int, ...]]
    text: str


@frozen
class Splits:
    """What is assumed about disaggregated runs beyond what `Recipes` says of all; the data file has the sources."""

    engines: Mapping[str, str]
    hosts: Mapping[str, str]
    connectors: Mapping[str, str]
    batches: tuple[Batches, ...]
    rules: tuple[Pools, ...]


@cache
def splits() -> Splits:
    return catalog.value(Splits, "recipes", "disaggregated")


def two_pools(row: Row) -> Scenario:
    """The scenario of a disaggregated *row*; raises NotRun, with the reason, for a row that cannot be simulated."""
    return recipes.checked(row, table_of(row))


def table_of(row: Row) -> dict[str, Any]:
    """The table of the scenario of a disaggregated *row*."""
    prefill, decode = _sides(row)
    # The columns of such a row that say how an engine's GPUs share the work are wrong or empty.
    table = recipes.table_of(evolve(row, tensor=1, pipeline=1, attention_dp=1, moe_tp=1, moe_ep=1))
    table["engine"] = splits().engines.get(row.backend, table["engine"])
    table["host"] = splits().hosts.get(row.backend, table["host"])
    waves = recipes.waves(row.concurrency, row.output, _WAVES, _FEWEST)
    table["workload"]["synthetic"]["count"] = row.concurrency * waves
    for rule in _rules(row):
        table["serve"] |= rule.serve
        table["engine"] = rule.engine or table["engine"]
    table["serve"] = recipes.accepting(row, _drafting(row, table["serve"]))
    table["serve"]["kv_transfer_config"] = {"kv_connector": splits().connectors[row.backend]}
    table["pools"] = {"prefill": _pool("prefill", row, prefill, table["serve"]),
                      "decode": _pool("decode", row, decode, table["serve"])}
    system = system_of(table["gpu"])
    nodes = _nodes((prefill, decode), system.gpus_per_node)
    return table | {"nodes": nodes} if nodes > system.nodes else table


def _sides(row: Row) -> tuple[Workers, Workers]:
    """The workers that prefill and those that decode; raises NotRun where they are not known."""
    split = row.split
    if split is None:
        raise NotRun("disaggregated, and no table of worker counts (silicon_join.csv) is beside the file or named")
    if split.prefill is None or split.decode is None:
        raise NotRun("disaggregated, and its numbers of workers are not known")
    if not split.speculation:
        raise NotRun("disaggregated, and whether it decodes speculatively is not known")
    if not row.concurrency:
        raise NotRun("its concurrency is not known")
    return split.prefill, split.decode


def fields_of(row: Row) -> dict[str, str]:
    """The fields of a row that rules may match, as text."""
    known = assumptions.recipes()
    assert row.split and row.split.prefill and row.split.decode, "only for rows whose workers are known"
    if row.system not in known.gpus or row.backend not in known.backends:
        return {}
    return recipes.fields_of(row, known) | {"prefill": row.split.prefill.shape, "decode": row.split.decode.shape}


def _rules(row: Row) -> list[Pools]:
    """The rules for *row*, in their order."""
    fields = fields_of(row)
    return [rule for rule in splits().rules if recipes.matches(rule.when, {**fields, "batch": str(batch(row))})]


def _pool(role: str, row: Row, side: Workers, serve: Mapping[str, Any]) -> dict[str, Any]:
    """The table of the pool with this *role*; *serve* are the settings of both."""
    own: dict[str, Any] = side.settings
    for rule in _rules(row):
        own |= recipes.own(getattr(rule, role), _values(row, side))
        if role == "prefill" and rule.chunk:
            own["max_num_batched_tokens"] = rule.chunk // (side.gpus if side.attention_dp else 1)
    own = recipes.widened(own, serve.get("speculative_config", {}).get("num_speculative_tokens", 0))
    whole = recipes.fitted({**serve, **own})
    return {"role": role, "replicas": side.count,
            "serve": {key: value for key, value in whole.items() if serve.get(key) != value}}


def _values(row: Row, side: Workers) -> dict[str, int]:
    """What the names in rules stand for: `batch` are the sequences of a decoding rank, `share` twice its share of those
    in flight, to the next multiple of 16."""
    return {"concurrency": row.concurrency, "batch": batch(row),
            "share": recipes.graphs(2 * ceil(row.concurrency / side.ranks))}


def batch(row: Row) -> int:
    """The most sequences of a decoding rank: what the name of the row's recipe says.

    Where no recipe is known, the largest power of two that the row's concurrency fills: by their names, recipes are run
    with one to two times as many requests as their ranks take.
    """
    if name := _recipe(row):
        return int(name[4])
    _, decode = _sides(row)
    return int(2 ** max(0, int(log2(row.concurrency / decode.ranks))))


def _drafting(row: Row, serve: dict[str, Any]) -> dict[str, Any]:
    """*serve* with as many drafts as the name of the row's recipe says, where it says so."""
    name = _recipe(row)
    if name is None or not name[5]:
        return serve
    return {**serve, "speculative_config": {**serve["speculative_config"], "num_speculative_tokens": int(name[5])}}


def _recipe(row: Row) -> re.Match[str] | None:
    """The name of the row's recipe, None where it is not known; names of recipes that draft say how many tokens."""
    (prefill, decode), fields = _sides(row), fields_of(row)
    deployed = (prefill.count, decode.count, decode.shape, row.split is not None and row.split.speculation != "none")
    for known in splits().batches:
        for text, runs in known.names.items() if recipes.matches(known.when, fields) else ():
            name = _NAME.fullmatch(text)
            assert name, f"{text} is not the name of a recipe"
            if row.concurrency in runs and (int(name[1]), int(name[2]), name[3], bool(name[5])) == deployed:
                return name
    return None


def _nodes(sides: Iterable[Workers], size: int) -> int:
    """How many nodes of *size* GPUs the workers need."""
    units = [unit for side in sides for unit in ([1] * side.ranks if side.attention_dp and side.gpus > size else
                                                 [side.gpus] * side.count)]
    return ceil(pack(units, size)[1] / size)
