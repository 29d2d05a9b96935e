"""What is said of files that are no scenarios, and of keys that stand in the wrong table of one."""

from collections.abc import Mapping
from pathlib import Path

from attrs import fields_dict

from ksim.foundation import catalog
from ksim.foundation.errors import DataError, UnknownKey
from ksim.foundation.files import nearest
from ksim.specs.footprint import Footprint
from ksim.specs.pools import PoolSettings
from ksim.specs.power import PowerSettings
from ksim.specs.settings import EngineSettings
from ksim.specs.signals import SignalSettings
from ksim.specs.slo import Slo
from ksim.workload.arrivals import Arrivals
from ksim.workload.replay import Replay
from ksim.workload.synthetic import Synthetic
from ksim.workload.workload import Workload

#: The tables in which a key is looked for.
_TABLES: Mapping[str, type] = {
    "serve": EngineSettings, "workload": Workload, "workload.synthetic": Synthetic, "workload.replay": Replay,
    "workload.synthetic.arrivals": Arrivals, "slo": Slo, "power": PowerSettings, "energy": Footprint,
    "signals": SignalSettings, "pools.NAME": PoolSettings}


def check_scenario_file(path: Path) -> None:
    """Raise DataError for a path that is no scenario file, such as a trace or the directory of a run."""
    if path.is_dir():
        _refuse_folder(path)
    elif not catalog.is_file(str(path)):
        raise DataError(str(path), _other_kind(path))
    elif not path.exists() and not nearest(path):
        raise DataError(str(path), f"No such file or directory; `ksim new {path}` writes a scenario to start from")


def check_content(path: Path, table: Mapping[str, object]) -> None:
    """Raise DataError for a file without any keys."""
    if not table:
        raise DataError(str(path), f"model, workload: are missing, for the file is empty; `ksim new {path} --force`"
                                   f" writes a scenario to start from")


def _refuse_folder(path: Path) -> None:
    """Raise DataError for a folder, with the scenarios that are in it."""
    if (path / "scenario.toml").is_file():
        best, own = path / "best.toml", path / "scenario.toml"
        said = f"study; its best scenario is {best}" if best.exists() else f"run; its scenario is {own}"
        raise DataError(str(path), f"is the directory of a {said}")
    inside = sorted(file.name for file in path.glob("*.toml"))[:5]
    raise DataError(str(path), f"is a folder; name a file in it{f', such as {path / inside[0]}' if inside else ''}")


def _other_kind(path: Path) -> str:
    """What a file that is no TOML may be, and which command takes it."""
    if not path.exists() and (near := nearest(path)):
        return f"No such file or directory{near}"
    if path.suffix.lower() in (".yaml", ".yml", ".sh"):
        return f"is not a scenario, which ends in .toml; to make one of what starts your engines: ksim import {path}"
    return f"is not a scenario, which ends in .toml; if it is a trace: ksim replay {path} --model MODEL --gpu GPU"


def misplaced(error: UnknownKey, top: type) -> UnknownKey:
    """*error*, and where the unknown key belongs, if there is such a key in another table of a scenario."""
    where, problem = error.args
    name = where.rpartition(": ")[2].rpartition(".")[2].replace("-", "_")
    if "did you mean" in problem:
        return error
    places = [f"[{table}]" for table, cls in _TABLES.items() if name in fields_dict(cls)]
    places = ["the top of the file"] if name in fields_dict(top) else places
    return UnknownKey(where, f"unknown key; {name} belongs to {' or '.join(places)}") if places else error
