"""Fleets whose sizes change while they serve: the life of their replicas, and the decisions of autoscalers.

docs/glossary.md describes the columns and the numbers.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from attrs import frozen

from ksim.flow.events import EngineBuilt, Scaled
from ksim.flow.log import Columns, Log
from ksim.results.arrow import records
from ksim.results.history import absent
from ksim.results.numbers import Summary
from ksim.results.series import Series
from ksim.results.steps import Floats, ratio

__all__ = ["FleetSizes", "allocation", "decisions", "replica_table", "scaling_rows", "windows"]

#: The states of a replica that has GPUs, in their order; few fleets have warm ones.
STATES = ("starting", "ready", "draining", "warm")
_READY, _WARM, _GONE = "ready", "warm", "gone"


#: The moments at which states began, and these.
Life = Sequence[tuple[float, str]]


def _replicas(engines: Sequence[EngineBuilt]) -> dict[tuple[str, int], list[EngineBuilt]]:
    """The engines of each replica, by its pool and its number."""
    found: dict[tuple[str, int], list[EngineBuilt]] = {}
    for built in engines:
        found.setdefault((built.pool, built.replica), []).append(built)
    return found


def _life(engines: Sequence[EngineBuilt]) -> Life:
    """When the states of the replica that has these *engines* began."""
    return engines[0].life or ((0.0, _READY),)


_REPLICAS = pa.schema([("time_s", pa.float64()), ("pool", pa.string()), ("replica", pa.int64()),
                       ("state", pa.string()), ("gpus", pa.int64())])


def replica_table(engines: Sequence[EngineBuilt], duration: float) -> pa.Table:
    """One row per change of the state of a replica up to *duration*, in order of time; at 0 s, all have one."""
    rows = [{"time_s": time, "pool": pool, "replica": number, "state": state,
             "gpus": sum(built.ranks * built.stages for built in own)}
            for (pool, number), own in _replicas(engines).items() for time, state in _life(own) if time <= duration]
    return records(sorted(rows, key=lambda row: row["time_s"]), _REPLICAS)


#: What an autoscaler saw of a pool, as `Scaled` has it.
_COUNTS = ("ready", "starting", "draining", "held")
_SEEN = (*_COUNTS[:3], "running", "waiting", "held", "kv_usage", "request_rate", "ttft_s")
_DECISIONS = pa.schema([
    ("time_s", pa.float64()), ("pool", pa.string()), ("before", pa.int64()), ("replicas", pa.int64()),
    ("reason", pa.string()), *((name, pa.int64() if name in _COUNTS else pa.float64()) for name in _SEEN)])


def scaling_rows(columns: Columns) -> pa.Table:
    """One row per decision of an autoscaler, in order of time, from events of kind `Scaled`."""
    names = [name for name in columns if name not in ("time", "seen")]
    rows = [{"time_s": time, **dict(zip(names, values, strict=True)), **_known(seen)}
            for time, seen, *values in zip(*(columns[name].tolist() for name in ("time", "seen", *names)), strict=True)]
    return records(rows, _DECISIONS)


def _known(seen: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if np.isnan(value) else value for name, value in seen.items()}


def allocation(engines: Sequence[EngineBuilt], gpu_seconds: float, duration: float) -> Summary:
    """How much of GPUs, and how many engines and replicas at a time, autoscalers had in a run of *duration*; how many
    were warm, where any was; what of their nodes nobody had, where these come and go; and how often a replica started,
    or was to go while it was ready."""
    replicas = _replicas(engines)
    lives = [[moment_state for moment_state in _life(own) if moment_state[0] <= duration]
             for own in replicas.values()]
    engines_there = _there(zip(map(len, replicas.values()), lives, strict=True))
    states = [[state for _, state in life] for life in lives]
    warm = _mean(lives, duration, {_WARM})
    own = sum(built.ranks * built.stages * (duration - gone)
              for built, gone in zip(engines, absent(engines, duration).tolist(), strict=True))
    return {"allocated_gpu_seconds": gpu_seconds, "mean_gpus": ratio(gpu_seconds, duration),
            "max_engines": round(engines_there.peak), "min_engines": round(engines_there.values.min()),
            "mean_replicas": _mean(lives, duration, STATES), **({"mean_warm_replicas": warm} if warm else {}),
            **({"unused_gpu_seconds": gpu_seconds - own} if engines[0].nodes else {}),
            "replica_starts": sum(each.count("starting") for each in states),
            "replica_drains": sum(before == _READY for each in states for before in each[:-1])}


def _mean(lives: Iterable[Life], duration: float, states: Container[str]) -> float | None:
    """How many replicas with such *lives* are in one of these *states*, on the mean; None in no time."""
    return ratio(float(_there(((1, life) for life in lives), states).integral(np.array([duration]))[0]), duration)


def _there(lives: Iterable[tuple[int, Life]], states: Container[str] = STATES) -> Series:
    """How much is in one of these *states*, of replicas that each count for so much and have had such lives."""
    changes = [(moment, much * ((state in states) - (before in states))) for much, life in lives
               for (_, before), (moment, state) in pairwise(((0.0, _GONE), *life))]
    return Series.of_changes(*(np.array(column, np.float64) for column in zip(*changes, strict=True)))


def decisions(summary: Summary, log: Log) -> Summary:
    """*summary* with the number of decisions, also pool by pool."""
    asked = log.columns(Scaled)["pool"].tolist()
    pools = {name: {**pool, "scaling_decisions": asked.count(name)} for name, pool in summary["pools"].items()}
    return {**summary, "scaling_decisions": len(asked), "pools": pools}


@frozen(eq=False)
class FleetSizes:
    """The replicas of each pool over time, by state and as they were `wanted`, and the GPUs that they have."""

    replicas: Mapping[str, Mapping[str, Series]]
    gpus: Mapping[str, Series]

    @classmethod
    def of(cls, changes: pa.Table, asked: pa.Table) -> "FleetSizes":
        """Those of the rows of `replica_table`, and of `scaling_rows`."""
        replicas, gpus = {}, {}
        columns = {name: np.asarray(changes[name].to_pylist()) for name in changes.column_names}
        for pool in dict.fromkeys(columns["pool"].tolist()):
            own = {name: column[columns["pool"] == pool] for name, column in columns.items()}
            states = STATES if _WARM in columns["state"] else STATES[:-1]
            found = {state: _counted(own, state, np.ones(len(own["gpus"]))) for state in states}
            replicas[pool] = {"wanted": _wanted(found, asked, pool), **found}
            gpus[pool] = Series.total([_counted(own, state, own["gpus"].astype(float)) for state in states])
        return cls(replicas, gpus)


def _counted(own: Mapping[str, np.ndarray], state: str, amounts: Floats) -> Series:
    """The replicas in a *state*, each of which counts for its amount."""
    order = np.argsort(own["replica"], kind="stable")  # rows are in order of time
    replica = own["replica"][order]
    there = np.where(own["state"][order] == state, amounts[order], 0.0)
    before = np.where(np.append(-1, replica[:-1]) == replica, np.append(0.0, there[:-1]), 0.0)
    return Series.of_changes(own["time_s"][order], there - before)


def _wanted(found: Mapping[str, Series], asked: pa.Table, pool: str) -> Series:
    """The replicas that were wanted: those that were ready at the start, and what was asked for from then on."""
    rows = [row for row in asked.to_pylist() if row["pool"] == pool]
    first = float(found[_READY].at(np.zeros(1))[0])
    return Series(np.array([0.0, *(row["time_s"] for row in rows)]),
                  np.array([first, *(float(row["replicas"]) for row in rows)]))


def windows(series: Series, end: float) -> Iterator[tuple[float, float]]:
    """The points of *series* up to *end*, where its last value stands again."""
    for time, value in zip(series.times.tolist(), series.values.tolist(), strict=True):
        if time <= end:
            yield time, value
    yield end, float(series.at(np.array([end]))[0])
