"""The directory of a run as arrays: what `ksim run -o` wrote, and why some of it may not be there."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from attrs import define, field
from pyarrow import ArrowException, csv

from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import LONGEST_TABLE, parquet_table, regular_file
from ksim.results.attribution import Breakdown
from ksim.results.steps import Bools, Floats, Ints
from ksim.views.insights import summary_insights
from ksim.views.run_directory import Whole
from ksim.views.wording import Insight, model_name

if TYPE_CHECKING:
    from ksim.results.ranks import Ranks
    from ksim.results.scaling import FleetSizes

Columns = Mapping[str, np.ndarray[Any, Any]]
#: Why a streamed run has no kernels, phases and energy of requests.
STREAMED = "this run was written with --stream, which keeps neither kernels nor the phases of requests"


@define(eq=False, slots=False)
class SavedRun:
    """A saved run: its summary, and its tables, each read when it is asked for.

    `overview` is empty for streamed runs and those of an older ksim.
    """

    directory: Path
    summary: Mapping[str, Any]
    settings: Mapping[str, Any]
    scenario: str
    overview: Mapping[str, Any] = field(factory=dict)

    @classmethod
    def read(cls, directory: Path) -> "SavedRun":
        """Read what is small; raises ConfigError where there is no run, DataError where files are damaged."""
        whole = Whole.read(directory)
        path = directory / "scenario.toml"
        scenario = path.read_text(encoding="utf-8") if whole.settings is not None else ""
        return cls(directory, whole.summary, whole.settings or {}, scenario, _json(directory / "overview.json"))

    @property
    def subject(self) -> str:
        """What was run, in one line."""
        plain = f"{model_name(self.summary)} on {self.summary['gpus']} x {self.summary.get('gpu') or 'GPU'}"
        return str(self.overview.get("subject") or plain)

    @property
    def insights(self) -> list[Insight]:
        """What the run's report says stands out, or what its summary alone tells."""
        if "insights" in self.overview:
            return [Insight(insight["text"], insight["warning"]) for insight in self.overview["insights"]]
        return summary_insights(dict(self.summary))

    @property
    def engines(self) -> Sequence[Mapping[str, Any]]:
        return tuple(self.overview.get("engines", ()))

    @cached_property
    def requests(self) -> Columns:
        """The rows of requests.parquet in order of arrival; texts are lists of objects, unknown numbers nan."""
        table = _table(self.directory / "requests.parquet")
        order = np.argsort(table["arrival_s"].to_numpy(), kind="stable")
        return {name: table[name].to_numpy()[order] for name in table.column_names}

    @cached_property
    def completed(self) -> Bools:
        return np.asarray(self.requests["status"] == "completed")

    @cached_property
    def steps(self) -> Columns:
        """The rows of steps.parquet, engine by engine, in order."""
        names = ["engine", "scheduled_s", "start_s", "end_s", "time_s", "samples", "kv_blocks", "joules", "host_gap_s"]
        table = _table(self.directory / "steps.parquet", names)
        order = np.lexsort((table["start_s"].to_numpy(), table["engine"].to_numpy()))
        return {name: table[name].to_numpy()[order] for name in table.column_names}

    @cached_property
    def routing(self) -> pa.Table | None:
        """routing.parquet; None for runs without it."""
        path = self.directory / "routing.parquet"
        return _table(path) if path.is_file() else None

    @cached_property
    def scaling(self) -> pa.Table | None:
        """scaling.parquet; None for runs in which no replica comes or goes."""
        path = self.directory / "scaling.parquet"
        return _table(path) if path.is_file() else None

    @cached_property
    def sizes(self) -> "FleetSizes | None":
        """The replicas over time; None for the same runs."""
        if self.scaling is None:
            return None
        from ksim.results.scaling import FleetSizes

        return FleetSizes.of(_table(self.directory / "replicas.parquet"), self.scaling)

    @cached_property
    def ranks(self) -> "Ranks | None":
        """What each GPU did, from ranks.parquet; None for runs whose GPUs cannot differ."""
        from ksim.results.ranks import Ranks

        return Ranks.read(self.directory, self.duration)

    @cached_property
    def kernels(self) -> pa.Table | None:
        """kernels.csv; None for streamed runs."""
        path = self.directory / "kernels.csv"
        if not path.is_file():
            return None
        texts = dict.fromkeys(("label", "family", "heaviest_shape", "heaviest_launch", "source"), pa.string())
        try:
            regular_file(path, LONGEST_TABLE)
            return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=texts))
        except (OSError, ArrowException) as error:
            raise DataError(str(path), f"cannot be read as a table: {error}") from None

    @cached_property
    def breakdown(self) -> Breakdown | None:
        """The phases of completed requests, in order of arrival; None for streamed runs."""
        if not (self.directory / "attribution.parquet").is_file():
            return None
        return Breakdown.read(self.directory)

    @cached_property
    def phase_rows(self) -> Ints:
        """The row among the requests of each row of the breakdown."""
        if self.breakdown is None:
            return np.zeros(0, np.int64)
        ids = self.requests["id"]
        order = np.argsort(ids, kind="stable")
        return np.asarray(order[np.searchsorted(ids, self.breakdown.ids, sorter=order)])

    @property
    def duration(self) -> float:
        return float(self.summary["duration"] or 1.0)

    @property
    def targets(self) -> dict[str, float]:
        """The latency targets that are set, in ms: ttft, tpot and e2el."""
        limits = {name: self.summary.get(f"slo_{name}_ms") for name in ("ttft", "tpot", "e2el")}
        return {name: float(limit) for name, limit in limits.items() if limit is not None}

    def latency(self, name: str) -> Floats:
        """A latency of every request in ms, nan where it has none: ttft, tpot, e2el or queue."""
        column = self.requests["e2e_s" if name == "e2el" else f"{name}_s"]
        return 1e3 * np.where(self.completed, column, np.nan)

    @cached_property
    def late(self) -> dict[str, Bools]:
        """Which completed requests missed each target; an output of one token counts as a TPOT of zero."""
        return {name: np.nan_to_num(self.latency(name)) > self._limits(name, limit)
                for name, limit in self.targets.items()}

    def _limits(self, name: str, limit: float) -> Floats:
        """The target of each request, in ms: that of its workload where that has some, infinite where it sets none."""
        limits = np.full(len(self.completed), limit)
        for workload, row in self.summary.get("workloads", {}).items():
            limits[self.requests["workload"] == workload] = row.get(f"slo_{name}_ms", np.inf)
        return limits

    @cached_property
    def missed(self) -> Bools:
        """Which completed requests missed any target."""
        return np.asarray(np.any([*self.late.values(), np.zeros(len(self.completed), bool)], axis=0))


def _json(path: Path) -> Mapping[str, Any]:
    """The object in a file, empty where there is none."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise DataError(str(path), "cannot be read; run the scenario again") from None
    return content if isinstance(content, dict) else {}


def _table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    try:
        return parquet_table(path, columns=columns)
    except FileNotFoundError:
        raise ConfigError(str(path), "is missing; run the scenario again") from None
    except (OSError, ArrowException) as error:
        raise DataError(str(path), f"cannot be read as a table: {error}") from None
