"""Pages of all kinds of directories, each written once."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ksim.results.numbers import LatencyTargets
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import stream
from ksim.views.page import write_page
from ksim.views.result import Result
from tests.results import fabricate, fleet
from tests.views.page import browser as browsers
from tests.views.page import made_up

LOAD = {"count": 30, "arrivals": {"process": "poisson", "rate": 30.0}, "prompt": {"kind": "fixed", "value": 200},
        "output": {"kind": "uniform", "low": 2, "high": 20}}
SCENARIO = {"model": "llama-3.2-1b", "gpu": "h200", "seed": 3, "slo": {"ttft": "20 ms"},
            "workload": {"synthetic": LOAD}}
LABELS = {"model_id": f"a model {made_up.EVIL}", "gpu": "h200"}


def with_evil_texts(run: Path) -> Path:
    """The *run*, whose requests have names that would run if a page took them for markup."""
    path = run / "requests.parquet"
    table = parquet.read_table(path)
    for name in ("session", "tenant"):
        table = table.set_column(table.column_names.index(name), name, pa.array([made_up.EVIL] * len(table)))
    parquet.write_table(table, path)
    return run


def saved(result: Result, folder: Path) -> Path:
    return result.save(folder, Scenario.of(SCENARIO).to_toml(), plots=False, trace=False)


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A directory of each kind that has a page, by name."""
    folder = tmp_path_factory.mktemp("directories")
    stream(Scenario.of(SCENARIO), folder / "streamed")
    return {
        "run": with_evil_texts(saved(Result(fabricate.log(count=80), LABELS, LatencyTargets(ttft=0.02, tpot=0.004)),
                                     folder / "run")),
        "streamed": folder / "streamed",
        "fleet": saved(Result(fleet.log(count=40), LABELS, LatencyTargets(ttft=0.02)), folder / "fleet"),
        "without targets": saved(Result(fabricate.log(count=8), LABELS), folder / "plain"),
        "unserved": saved(Result(fabricate.log(count=0), LABELS, LatencyTargets(ttft=0.02)), folder / "none"),
        "sweep": made_up.sweep(folder / "sweep", made_up.EVIL),
        "tune": made_up.tune(folder / "tune"),
        "capacity": made_up.capacity(folder / "capacity"),
        "routers": made_up.routers(folder / "routers"),
    }


@pytest.fixture(scope="session")
def pages(directories: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The page of each directory."""
    folder = tmp_path_factory.mktemp("pages")
    return {name: write_page(path, folder / f"{path.name}.html") for name, path in directories.items()}


@pytest.fixture(scope="package")  # as long as it is there, its event loop runs
def browser() -> Iterator[object]:
    """One browser for all tests; without one, those that need it are skipped."""
    if why := browsers.absent():
        pytest.skip(why)
    with browsers.started() as found:
        yield found
