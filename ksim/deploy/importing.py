"""`ksim import`, from the texts to the scenario: each is read by the reader that recognises it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from ksim.deploy.assembly import assembled, commented, filled_in
from ksim.deploy.launches import Deployed, Wanted
from ksim.deploy.texts import Pasted, tidied
from ksim.deploy.workload import bench_of
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import Scenario, merged
from ksim.simulation.simulate import try_to_build

FOLDER = "deploy.readers"


def read(pasted: Pasted, wanted: Wanted) -> Deployed:
    """What *pasted* deploys; raises ConfigError for a text that no reader recognises, and for what one refuses."""
    _check_text(pasted)
    pasted = evolve(pasted, text=tidied(pasted.text))
    for name in sorted(catalog.names(FOLDER), key=lambda name: (name == "lines", name)):
        reader = catalog.find(FOLDER, name)()
        if reader.recognises(pasted):
            deployed: Deployed = reader.read(pasted, wanted)
            return deployed
    raise ConfigError(pasted.source or "the text", _nothing(pasted))


def _check_text(pasted: Pasted) -> None:
    """Raise ConfigError for bytes of a command line that are no UTF-8, which Python keeps as lone surrogates."""
    try:
        pasted.text.encode("utf-8")
    except UnicodeEncodeError as error:
        line = pasted.text.count("\n", 0, error.start) + 1
        raise ConfigError(pasted.at(line), "has bytes that are no text in UTF-8") from None


def _nothing(pasted: Pasted) -> str:
    first = next((line.strip() for line in pasted.text.splitlines() if line.strip()), "")
    said = f"{first[:60]!r} starts no engine that ksim knows" if first else "is empty"
    return f"{said}; expected `vllm serve MODEL ...`, `python -m sglang.launch_server ...` or `trtllm-serve MODEL ...`"


def scenario_text(texts: Sequence[Pasted], wanted: Wanted, output: Path | None = None) -> str:
    """The scenario that *texts* deploy, as commented TOML; raises KsimError for what cannot be simulated.

    Paths in it are as seen from *output*.
    """
    imported = assembled(_with_bench(joined([read(pasted, wanted) for pasted in texts]), wanted), wanted)
    scenario = Scenario.of(imported.table, "imported")
    try_to_build(scenario)
    return commented(evolve(imported, filled=filled_in(scenario)), output.parent if output else Path())


def _with_bench(deployed: Deployed, wanted: Wanted) -> Deployed:
    """*deployed* under the load of the client whose line the user gives."""
    if wanted.bench is None:
        return deployed
    bench = bench_of(wanted.bench, wanted)
    return evolve(deployed, scenario={**deployed.scenario, **bench.scenario}, idle=(*deployed.idle, *bench.idle),
                  remarks=(*deployed.remarks, *bench.remarks))


def joined(deployments: Sequence[Deployed]) -> Deployed:
    """All that several texts deploy."""
    scenario: Mapping[str, Any] = {}
    for deployed in deployments:
        scenario = merged(scenario, deployed.scenario)
    return Deployed.of(deployments, scenario)
