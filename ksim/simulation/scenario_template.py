"""A commented scenario to start from: every key with its meaning; keys that are not set are comments."""

import json
import os
import textwrap
from collections.abc import Iterator, Mapping
from math import ceil, inf, log2
from pathlib import Path
from typing import Any

from attrs import frozen

from ksim.foundation import catalog
from ksim.foundation.config import kinds_of, plain
from ksim.foundation.errors import DoesNotFit
from ksim.foundation.keys import Key, keys
from ksim.simulation.defaults import Defaults, Derived
from ksim.simulation.deployment import Deployment
from ksim.simulation.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.scenario_schema import FILE
from ksim.specs.footprint import Footprint
from ksim.specs.pools import PoolSettings
from ksim.specs.power import PowerSettings
from ksim.specs.settings import EngineSettings
from ksim.specs.slo import Slo
from ksim.workload.replay import Replay
from ksim.workload.synthetic import Synthetic
from ksim.workload.workload import Workload

#: The kind of service that a scenario is about if nobody says: a file of ksim/data/templates.
SERVICE = "chat"
#: Where the full context does not fit, it is cut to so many tokens.
CONTEXT = 16_384
_SECTIONS: Mapping[str, type] = {"serve": EngineSettings, "slo": Slo, "power": PowerSettings, "energy": Footprint,
                                 "workload": Workload, "workload.synthetic": Synthetic}
_WIDTH = 110


def starter(model: str, gpu: str, tensor_parallel_size: int | None = None, folder: Path | None = None,
            template: str = SERVICE) -> str:
    """The text of a scenario file for *folder*: *model* on *gpu*, under the load of a *template*.

    *tensor_parallel_size* is by default the smallest with which the model and a request of its whole context fit.  The
    context is cut where a node has too little memory for it.  Raises UnknownName for a name that the catalogue lacks,
    DoesNotFit for too few GPUs, and ConfigError for settings that the engine would refuse.
    """
    table = catalog.load("templates", template)
    deployment, asked = _fitting(model, gpu, tensor_parallel_size, table)
    active = _active(table, {"model": _seen_from(folder, model), "gpu": _seen_from(folder, gpu)}, deployment, asked)
    defaults = Defaults(EngineSettings(**asked), deployment.version, deployment.model, deployment.gpu).explain()
    derived = {row.setting: row for row in defaults if row.setting not in asked}
    sections = [_Section("", Scenario, active[""], {}), *(
        _Section(name, cls, active.get(name, {}), derived if name == "serve" else {})
        for name, cls in _SECTIONS.items())]
    lines = [_HEAD.format(schema=FILE.as_uri()), *(line for section in sections for line in section.lines()),
             "", "# A recorded trace, in place of [workload.synthetic]:", "#[workload.replay]",
             *_Section("workload.replay", Replay, {}, {}).keys(),
             "", "# A fleet: pools of engines, each with a table of its own:",
             "#[pools.NAME]", *_Section("pools", PoolSettings, {}, {}).keys(), *_pools(table)]
    return "\n".join(lines) + "\n"


def summary(template: str) -> str:
    """What the *template* is for: the comment in the first line of its file."""
    with catalog.path_of("templates", template).open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").strip()


def _active(table: Mapping[str, Any], named: dict[str, Any], deployment: Deployment, asked: dict[str, Any]
            ) -> dict[str, Mapping[str, Any]]:
    """The keys that are set, by section: those of the template's *table*, of the *named* parts and those *asked* for.
    """
    load = table["workload"]["synthetic"]
    load = {**load, "max_tokens": min(load["max_tokens"], deployment.serve.max_model_len or inf)}
    top = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    nodes = _nodes(table, deployment)
    return {"": {**named, **top, **({"nodes": nodes} if nodes > deployment.system.nodes else {})},
            "serve": asked, "slo": table.get("slo", {}), "workload.synthetic": load}


def _nodes(table: Mapping[str, Any], deployment: Deployment) -> int:
    """How many nodes the pools of the template's *table* take, if each replica is a *deployment*."""
    replicas: int = sum(pool["replicas"] for pool in table.get("pools", {}).values())
    gpus = replicas * deployment.serve.gpus
    return ceil(gpus / deployment.system.gpus_per_node)


def _pools(table: Mapping[str, Any]) -> Iterator[str]:
    for name, pool in table.get("pools", {}).items():
        yield from ("", f"[pools.{name}]", *(f"{key} = {toml(value)}" for key, value in pool.items()))


_HEAD = """\
#:schema {schema}
# A scenario: what is simulated, on what, under which load.  `ksim run` runs it as it is.
# A key that is commented out shows its default, or an example where the text above it says what the default is.
"""


def _seen_from(folder: Path | None, name: str) -> str:
    """*name* as a scenario in *folder* has to write it: a path from here becomes one from there."""
    return os.path.relpath(name, folder) if folder and catalog.is_file(name) else name


def _fitting(model: str, gpu: str, ranks: int | None, table: Mapping[str, Any]) -> tuple[Deployment, dict[str, Any]]:
    """The first deployment that fits, and the settings asked for, those of the template's *table* among them.

    Raises DoesNotFit where none does.
    """
    serve = table.get("serve", {})
    deployment = _deployment(model, gpu, serve)
    sizes = [ranks] if ranks else [2**power for power in range(1 + int(log2(deployment.system.gpus_per_node)))]
    choices: list[dict[str, Any]] = [{"tensor_parallel_size": size, **serve} for size in sizes]
    cut = {**choices[-1], "max_model_len": min(CONTEXT, deployment.model.max_length)}
    for asked in choices:
        if _fits(deployment := _deployment(model, gpu, asked)):
            return deployment, asked
    deployment = _deployment(model, gpu, cut)
    deployment.check_memory()
    return deployment, cut


def _fits(deployment: Deployment) -> bool:
    try:
        deployment.check_memory()
    except DoesNotFit:
        return False
    return True


def _deployment(model: str, gpu: str, serve: Mapping[str, Any]) -> Deployment:
    table = {"model": model, "gpu": gpu, "serve": serve, "workload": ANY_WORKLOAD}
    return Deployment.of(Scenario.of(table, "new"))


@frozen
class _Section:
    """A table of the file: the keys of `cls`, set where `active`, else as comments with the `derived` values."""

    name: str
    cls: type
    active: Mapping[str, Any]
    derived: Mapping[str, Derived]

    def lines(self) -> Iterator[str]:
        if self.name:
            yield from ("", f"[{self.name}]")
        yield from self.keys()

    def keys(self) -> Iterator[str]:
        for key in keys(self.cls):
            if f"{self.name}.{key.name}".strip(".") not in (*_SECTIONS, "workload.replay", "pools", "pools.serve"):
                yield from textwrap.wrap(self._comment(key), _WIDTH, initial_indent="# ", subsequent_indent="# ")
                yield self._line(key)

    def _comment(self, key: Key) -> str:
        row, kinds = self.derived.get(key.name), kinds_of(key.kind)
        return " ".join([key.described, *([f"A table with a kind: {', '.join(kinds)}."] if kinds else []),
                         *([f"Here: {row.source}."] if row and row.value is not None else [])])

    def _line(self, key: Key) -> str:
        if key.name in self.active:
            return f"{key.name} = {toml(self.active[key.name])}"
        row = self.derived.get(key.name)
        value = row.value if row and "Example" not in key.labels else key.default
        return f"#{key.name} = {key.labels.get('Example') or toml(plain(value))}"


def toml(value: Any) -> str:
    """*value* as TOML on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {toml(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)
