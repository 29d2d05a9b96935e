"""Wide expert parallelism: tokens/s a GPU of public deployments beside one priced step.

With expected values, all ranks of a deployment have as much to do, so one rank's step is the step of all: ``tokens of
a rank / its seconds``.  Beside that, all ranks play a few steps with the rows of experts drawn, which EPLB has placed.
Nothing is fitted to these rows.  What each deployment is taken to be is in recipes/wide_ep.toml.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from benchmarks.research import RECIPES, of_sglang
from ksim.calibration.reading.frames import load
from ksim.cli.parts import counted
from ksim.engine.loop_times import Horizon
from ksim.engine.ranks import LaunchTimes
from ksim.features.ranks import PoolRanks
from ksim.flow.batch import Batch
from ksim.flow.events import RanksMet
from ksim.flow.log import Log
from ksim.flow.steps import StepCost
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError, DataError, KsimError
from ksim.network.flows import Flows
from ksim.network.network import FleetNetwork
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.fleet import Fleet

#: Kinds of messages that bring tokens to experts and back.
EXCHANGES = ("dispatch", "combine", "low_latency_dispatch", "low_latency_combine")
#: What the columns of a row are called that count tokens/s of its phase a node.
A_NODE = {"prefill": "in_tok_s_per_node", "decode": "out_tok_s_per_node"}
SAME = "same"


@frozen
class Case:
    """One deployment as ksim plays it: a scenario's parts, and how many sequences of how many tokens a step has.

    `memory` is that of each GPU, where a part of the weights lies in host memory.
    """

    name: str
    row: Mapping[str, str]
    phase: str
    serve: Mapping[str, Any]
    prompts: tuple[int, int] | None = None
    decodes: tuple[int, int] | None = None
    measured: str = ""
    factor: float = 1.0
    column: str = ""
    gpus: int = 0
    engine: str = ""
    host: str = ""
    two_batch: bool = False
    memory: str = ""

    @property
    def batch(self) -> Batch:
        if self.prompts:
            count, tokens = self.prompts
            return Batch.parse("", ",".join([f"{tokens}+0"] * count))
        assert self.decodes, f"{self.name} has prompts or decodes"
        return Batch.parse("{}x{}".format(*self.decodes), "")


@frozen
class LeftOut:
    """A row that no case stands for, and why."""

    row: Mapping[str, str]
    why: str


@frozen
class Recipe:
    """All cases, what they share, and what those of one phase share."""

    cases: tuple[Case, ...]
    common: Mapping[str, Any] = field(factory=dict)
    prefill: Mapping[str, Any] = field(factory=dict)
    decode: Mapping[str, Any] = field(factory=dict)
    left_out: tuple[LeftOut, ...] = ()

    @classmethod
    def read(cls) -> "Recipe":
        return catalog.value(cls, "recipes", str(RECIPES / "wide_ep.toml"))

    def scenario(self, case: Case, gpu: str) -> Scenario:
        """The scenario of *case* on *gpu*; on as many nodes as it needs, and its workload is of no account.

        Steps are of two batches that overlap where the deployment's were.
        """
        parts = [self.common, getattr(self, case.phase), {"serve": case.serve}]
        serve = {key: value for part in parts for key, value in part.get("serve", {}).items()}
        others = {key: value for part in parts for key, value in part.items() if key != "serve"}
        named: dict[str, Any] = {key: value for key in ("engine", "host") if (value := getattr(case, key))}
        nodes = -(-serve["data_parallel_size"] // 8)
        if case.decodes:
            serve = {"max_cudagraph_capture_size": case.decodes[0], **serve}
        serve = {**serve, "enable_dbo": case.two_batch, **REARRANGED}
        if named.get("engine", others["engine"]).startswith("sglang"):
            serve = of_sglang(serve)
        wired = {"nodes": nodes} if gpu.startswith("h") else {}
        named["gpu"] = {"name": gpu, "memory": case.memory} if case.memory else gpu
        return Scenario.of({**others, **named, **wired, "serve": serve, "workload": ANY_WORKLOAD})


@frozen
class Result:
    """A case with the measured tokens/s a GPU, and the priced step of one rank.

    `undivided` are the seconds of a step of one batch, and `drawn` those of a step of all ranks whose experts' rows are
    drawn.
    """

    case: Case
    measured: float
    step: StepCost
    undivided: float
    drawn: float
    #: Why the step does not fit in memory; "" if it does.
    shortage: str

    @property
    def predicted(self) -> float:
        """Tokens/s a GPU."""
        return self.case.batch.tokens / self.step.seconds

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    def ratio_of(self, seconds: float) -> float:
        """The ratio if a step took so many *seconds*."""
        return self.case.batch.tokens / seconds / self.measured

    @property
    def bounds(self) -> tuple[float, float]:
        """The ratio at the ends of the 90 % interval of the step's seconds."""
        tokens = self.case.batch.tokens
        return tokens / self.step.high / self.measured, tokens / self.step.low / self.measured

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds of the step by what they are spent on, the most first."""
        parts: dict[str, float] = {}
        for kernel, runs in counted(self.step).items():
            part = _part(kernel.label, kernel.family)
            parts[part] = parts.get(part, 0.0) + runs * kernel.seconds
        return dict(sorted(parts.items(), key=lambda item: -item[1]))

    @property
    def exchanged(self) -> float:
        """The share of the step in which tokens are on their way to experts and back."""
        return self.parts.get("exchange", 0.0) / self.step.seconds


@frozen
class Report:
    """All results, and rows that are left out with the reasons."""

    results: tuple[Result, ...]
    left_out: Mapping[str, str]


def _part(label: str, family: str) -> str:
    if family in EXCHANGES:
        return "exchange"
    for name, starts in (("attention", ("attention_decodes", "attention_prompts")),
                         ("experts", ("experts_", "combine", "dispatch_", "topk")), ("shared experts", ("shared_",)),
                         ("host", ("gaps", "inputs"))):
        if label.startswith(starts):
            return name
    return "projections and the rest"


def validate(path: Path) -> Report:
    """Price the cases of the table at *path*; raises DataError for a table without a case's row."""
    recipe, rows = Recipe.read(), [*_rows(path)]
    results = [_result(recipe, case, _find(rows, case.row, path)) for case in recipe.cases]
    left_out = {_find(rows, one.row, path)["who"]: one.why for one in recipe.left_out}
    return Report(tuple(results), left_out)


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    """The rows as texts; "same" is what the row above says."""
    frame = load(path)
    above: dict[str, str] = {}
    columns = {name: frame.texts(name).tolist() for name in frame.names}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, map(str, values), strict=True))
        above = {name: above.get(name, "") if value == SAME else value for name, value in row.items()}
        yield above


def _find(rows: Sequence[Mapping[str, str]], wanted: Mapping[str, str], path: Path) -> Mapping[str, str]:
    found = [row for row in rows if all(row.get(name) == text for name, text in wanted.items())]
    if not found:
        said = ", ".join(f"{name} = {text!r}" for name, text in wanted.items())
        raise DataError(str(path), f"has no row with {said}")
    return found[0]


def _result(recipe: Recipe, case: Case, row: Mapping[str, str]) -> Result:
    scenario = recipe.scenario(case, row["gpu"].lower())
    deployment = Deployment.of(scenario)
    shortage = ""
    try:
        deployment.check_step(case.batch)
    except KsimError as error:
        shortage = str(error)
    (timer,) = deployment.timers()
    tokens = [case.batch.tokens] * deployment.serve.data_parallel_size
    step = timer.step_cost(case.batch, tokens)
    (alone,) = Deployment.of(evolve(scenario, serve=evolve(scenario.serve, enable_dbo=False))).timers()
    return Result(case, case.factor * _measured(case, row), step, alone.step_cost(case.batch, tokens).seconds,
                  drawn_seconds(evolve(scenario, detail="rank"), case.batch), shortage)


#: EPLB, where it is on, places experts after the first steps.
REARRANGED = {"eplb_step_interval": 8, "eplb_window_size": 8}
#: Steps that ranks play, and how many of them count.
PLAYED, COUNTED = 6, 3


def drawn_seconds(scenario: Scenario, batch: Batch) -> float:
    """Seconds of a step in which every rank computes *batch*, and rows of experts are drawn: the mean of some."""
    fleet, env, log = Fleet.of(scenario), Horizon(), Log()
    (pool,) = fleet.pools
    ranks = PoolRanks(pool, env, log, lambda: FleetNetwork(env, fleet.links, Flows(env, fleet.links)))
    tokens = [batch.tokens] * pool.deployment.serve.data_parallel_size
    timers = pool.deployment.timers(pool.places[0].first, pool.places[0].firsts)
    costs = [timer.step_cost(batch, tokens) for timer in timers]
    at_once = [LaunchTimes(0.0, 0.0)] * len(costs)
    for number, place in zip(pool.numbers, pool.places, strict=True):
        stages = ranks.stages(number, place, timers, None)
        for _ in range(PLAYED):
            stages.launch(costs, at_once, batch=batch, tokens_by_rank=tokens)
    env.run()
    met = log.columns(RanksMet)
    return float((met["time"] - met["start"])[-COUNTED:].mean())


def _measured(case: Case, row: Mapping[str, str]) -> float:
    """Tokens/s a GPU."""
    if case.measured:
        if not (match := re.search(case.measured, row["conditions"])):
            raise ConfigError("wide_ep.toml", f"{case.name}: {case.measured!r} is not in {row['conditions']!r}")
        found = float(match[1].replace(",", ""))
        return found if "a GPU" in case.measured else found / _gpus(case, row)
    return float(row[case.column or A_NODE[case.phase]]) / _gpus(case, row)


def _gpus(case: Case, row: Mapping[str, str]) -> float:
    """The GPUs whose tokens the row counts: those of a node."""
    return case.gpus or float(row[f"{case.phase}_gpus"]) / float(row["nodes"])
