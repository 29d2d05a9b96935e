"""`python -m benchmarks.reference`: write what follows from the keys' documentation (ksim/foundation/keys.py).

That is the tables of docs/scenario.md and the JSON Schema in ksim/data.  And docs/cli.md, from the commands.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, get_args, get_origin

import attrs

from benchmarks import commands
from benchmarks.pages import put
from ksim.foundation import catalog
from ksim.foundation.config import Choice, kinds_of, plain
from ksim.foundation.keys import Key, keys
from ksim.scenario.scenario import Scenario
from ksim.scenario.schema import FILE, schema, toml
from ksim.specs.configs import KvTransferConfig, LimitMmPerPrompt, LoraModule, MmProcessorKwargs, SpeculativeConfig
from ksim.specs.hardware import Footprint, PowerSettings, RankSettings, SlowGpu
from ksim.specs.pools import (
    DisruptionBudgetSettings,
    Lifecycle,
    NodeDrain,
    PoolSettings,
    RollingUpdateSettings,
    WarmPoolSettings,
)
from ksim.specs.settings import EngineSettings, SignalSettings, Slo
from ksim.specs.sglang import SglangSettings
from ksim.workload.arrivals import Arrivals
from ksim.workload.distributions import Lengths
from ksim.workload.images import Images
from ksim.workload.rates import Phase, RateAt, Spike
from ksim.workload.replay import MixedWorkload, Replay, Retries, Workload
from ksim.workload.synthetic import Adapters, Prefixes, Sessions, Synthetic

ROOT = Path(__file__).parents[1]
PAGE, EXAMPLES = ROOT / "docs" / "scenario.md", ROOT / "scenarios" / "workloads"

#: The tables of a scenario file, by title.
SECTIONS: Mapping[str, type] = {
    "Top level": Scenario, "[serve]": EngineSettings, "[serve.sglang]": SglangSettings,
    "[serve.kv_transfer_config]": KvTransferConfig, "[serve.speculative_config]": SpeculativeConfig,
    "[[serve.lora_modules]]": LoraModule,
    "[serve.limit_mm_per_prompt]": LimitMmPerPrompt, "[serve.mm_processor_kwargs]": MmProcessorKwargs,
    "[pools.NAME]": PoolSettings, "[pools.NAME.warm_pool]": WarmPoolSettings,
    "[lifecycle]": Lifecycle, "[lifecycle.rolling_update]": RollingUpdateSettings,
    "[lifecycle.disruption_budget]": DisruptionBudgetSettings, "[[drains]]": NodeDrain,
    "[signals]": SignalSettings, "[slo]": Slo,
    "[power]": PowerSettings, "[energy]": Footprint, "[ranks]": RankSettings, "[[ranks.slow]]": SlowGpu,
    "[workload]": Workload, "[workload.replay]": Replay, "[workload.retries]": Retries,
    "[workload.mix.NAME]": MixedWorkload,
    "[workload.synthetic]": Synthetic, "arrivals": Arrivals, "phases": Phase, "points": RateAt, "spikes": Spike,
    "prefixes": Prefixes, "sessions": Sessions, "adapters": Adapters, "images": Images,
    **{f'kind = "{kind}"': cls for kind, cls in kinds_of(Lengths).items()},
}
#: The pages that describe the plug-ins of a folder, one by one.
TOPICS = {
    "cluster.routers": "routing.md#the-routers-that-ship", "cluster.flow_controls": "routing.md#flow-control",
    "cluster.pair_routers": "fleets.md#who-prefills-and-who-decodes", "kv.transfer.connectors": "fleets.md#timelines",
    "scheduling.policies": "policies.md#policies-that-come-with-ksim",
    "scheduling.admissions": "policies.md#admissions-that-come-with-ksim",
    "scheduling.acceptances": "speculation.md#how-many-drafts-are-accepted", "workload.traces": "traces.md#formats",
}
_TYPES: Mapping[Any, str] = {int: "integer", float: "number", bool: "boolean", str: "string", Path: "path",
                             Choice: "plug-in"}
#: Options of this size and more set no limit.
_UNLIMITED = 2**40


def main() -> None:
    """Write the pages and the schema."""
    for name, lines in pages().items():
        put(PAGE, name, lines)
    put(commands.PAGE, "commands", commands.lines())
    FILE.write_text(schema_text(), encoding="utf-8")


def schema_text() -> str:
    return json.dumps(schema(), indent=1) + "\n"


def pages() -> dict[str, list[str]]:
    """The lines between the marks of docs/scenario.md."""
    return {"keys": [*_tables()], "examples": [*_examples()], "plug-ins": [*_plugins()]}


def _tables() -> Iterator[str]:
    for title, cls in SECTIONS.items():
        shown = f"`{title}`" if title != "Top level" else title
        yield from (f"### {shown}", "", "| Key | Type | Default | Meaning |", "|---|---|---|---|")
        yield from (_row(key, of_vllm="[serve" in title) for key in keys(cls) if key.name != "kind")
        yield ""


def _row(key: Key, of_vllm: bool) -> str:
    """A line of a table, *of_vllm* if its keys are vLLM's where their source is not said."""
    unit, source = key.labels.get("Unit", "none"), key.labels.get("Source", "")
    source = "" if of_vllm and source == "vLLM" else source
    said = [key.text, *([f"One of {', '.join(f'`{each}`' for each in key.shown)}."] if key.shown else []),
            *([f"Names: {_names(key)}."] if key.names else []), *([f"Source: {source}."] if source else []),
            *([f"Example: `{key.labels['Example']}`."] if "Example" in key.labels else [])]
    cells = (f"`{key.name}`", typed(key) + (f" ({unit})" if unit != "none" else ""), _default(key), " ".join(said))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def typed(key: Key) -> str:
    """A key's type, and what its number may be."""
    bounds = ", ".join(f"{sign} {int(bound):,}" if bound == int(bound) else f"{sign} {bound:g}"
                       for sign, bound in key.bounds if isfinite(bound))
    kind = ("quantity or table of them" if key.tabled else "quantity" if key.quantity else
            "string or table" if key.part_of and key.names else _type(key.part_of or key.kind))
    return f"{kind} {bounds}".strip()


def _type(kind: Any) -> str:
    if kinds_of(kind):
        return "distribution"
    if attrs.has(kind) and kind is not Choice:
        return "table"
    if get_origin(kind) in (tuple, list, Sequence):
        return f"array of {_type(get_args(kind)[0])}s"
    if get_origin(kind) in (dict, Mapping) and get_args(kind)[1] is Any:
        return "table"
    if get_origin(kind) in (dict, Mapping):
        return f"table of {_type(get_args(kind)[1])}s"
    return _TYPES.get(kind) or " or ".join(map(_type, get_args(kind))) or str(kind)


def _default(key: Key) -> str:
    if key.required:
        return "required"
    default = None if _type(key.kind) == "table" else plain(key.default)
    if key.labels.get("Default") or default is None:
        return key.labels.get("Default", "")
    return f"`{toml(default)}`"


def _names(key: Key) -> str:
    return ", ".join(f"`ksim/data/{folder}`" if catalog.is_data(folder) else f"[{folder}](#{folder.replace('.', '')})"
                     for folder in key.folders)


def _examples() -> Iterator[str]:
    for path in sorted(EXAMPLES.glob("*.toml")):
        yield from (f"### {path.name}", "", "```toml", *path.read_text(encoding="utf-8").splitlines(), "```", "")


def _plugins() -> Iterator[str]:
    folders = dict.fromkeys(folder for cls in SECTIONS.values() for key in keys(cls) for folder in key.folders)
    for folder in (folder for folder in folders if not catalog.is_data(folder)):
        yield from (f"### {folder}", "", *(_optional if folder in TOPICS else _whole)(folder), "")


def _whole(folder: str) -> Iterator[str]:
    yield from ("| Name | Options | What it is |", "|---|---|---|")
    yield from (f"| `{name}` | {_options(catalog.find(folder, name))} | {catalog.summary(folder, name)} |"
                for name in catalog.names(folder))


def _optional(folder: str) -> Iterator[str]:
    """The plug-ins of a *folder* that has a page of its own: only their options."""
    options = {name: _options(catalog.find(folder, name)) for name in catalog.names(folder)}
    plain = [f"`{name}`" for name, some in options.items() if not some]
    yield f"[{TOPICS[folder].partition('#')[0]}]({TOPICS[folder]}) says what each is."
    if plain:
        yield f"Without options: {', '.join(plain)}."
    yield from ("", "| Name | Options |", "|---|---|")
    yield from (f"| `{name}` | {some} |" for name, some in options.items() if some)


def _options(made: Any) -> str:
    if not attrs.has(made):
        return ""
    options = [key for key in keys(made) if not key.name.startswith("_")]
    return ", ".join(f"`{key.name} = {toml(plain(key.default))}`" if _plain(key.default) else f"`{key.name}`"
                     for key in options)


def _plain(default: Any) -> bool:
    """Whether a default says something: an unlimited number does not."""
    return isinstance(default, str) or (isinstance(default, int | float) and default < _UNLIMITED)


if __name__ == "__main__":
    main()
