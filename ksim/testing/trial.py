"""Play one case and check the invariants on its history.

A case that breaks an invariant: the error that reports it, and the files that `ksim run` replays.

A case: settings, arrivals and aborts, small enough to read.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import zip_longest
from math import inf
from typing import Any

import attrs
import tomli_w
from attrs import Factory, field, fields, frozen

from ksim.foundation import catalog
from ksim.kv.cache.block_cache import BlockCache
from ksim.kv.cache.radix import RadixCache
from ksim.scheduling.job import Job, Limits
from ksim.scheduling.scheduler import Scheduler
from ksim.scheduling.sglang.scheduler import SglangScheduler
from ksim.specs.settings import EngineSettings
from ksim.testing.connected import PlannedTransfer
from ksim.testing.history import EngineHistory, HistoryRecorder, digest
from ksim.testing.invariants import INVARIANTS, SGLANG_INVARIANTS, Invariant, breach
from ksim.testing.invariants.progress import longest
from ksim.testing.loop import ROOMY, Loop, is_sglang, loop


@frozen(repr=False)
class Arrival:
    """A request.  All prompts of a `family` begin with the same tokens."""

    turn: int
    prompt: int
    output: int
    overrun: int = 0  # tokens that the scheduler expects after the last one, where a stop token ends the output
    priority: int = 0
    family: int = 0
    reads_cache: bool = True
    ignore_eos: bool = False
    transfer: PlannedTransfer | None = None

    def chunks(self, block_tokens: int, *, named_outputs: bool) -> list[tuple[int, int]]:
        """The names of its blocks.

        They cover the prompt and, with *named_outputs*, the output, which then equals that of its family.
        """
        blocks = (self.prompt + self.output) // block_tokens + 1 if named_outputs else -(-self.prompt // block_tokens)
        return [(self.family, place) for place in range(blocks)]

    def __repr__(self) -> str:
        """Only the fields that differ from their defaults."""
        shown = [f"{a.name}={getattr(self, a.name)}" for a in fields(type(self))
                 if a.default != getattr(self, a.name)]
        return f"Arrival({', '.join(shown)})"


@frozen
class Case:
    """`settings` are keywords of `ksim.testing.loop.loop`.

    An abort is (turn, request, whether a batch is in flight).
    """

    settings: dict[str, Any]
    arrivals: tuple[Arrival, ...]
    aborts: tuple[tuple[int, int, bool], ...] = ()
    named_outputs: bool = True

    @property
    def coming(self) -> tuple[Arrival, ...]:
        """The arrivals in order of time, which is the order of their numbers."""
        return tuple(sorted(self.arrivals, key=lambda arrival: arrival.turn))

    @property
    def limits(self) -> Limits:
        names = {attribute.name for attribute in fields(Limits)}
        return Limits(**(ROOMY | {key: value for key, value in self.settings.items() if key in names}))

    @property
    def longest(self) -> int:
        """The tokens of the longest request."""
        most: int = self.settings["max_model_len"]
        return max(min(a.prompt + a.output, most) for a in self.arrivals)

    def play(self, engine: Loop, naming: "Naming | None" = None) -> Iterator[Loop]:
        """Play the case on a fresh *engine*, and pause after every schedule and every update.

        *naming* gives requests and their contents names.
        """
        naming = naming or Naming()
        coming = list(self.coming)
        while coming or self._goes_on(engine):
            while coming and coming[0].turn <= engine.turns:
                self._arrive(engine, coming.pop(0), naming)
            self._abort(engine, in_flight=False)
            engine.schedule()
            yield engine
            self._abort(engine, in_flight=True)
            engine.update()
            yield engine

    def _goes_on(self, engine: Loop) -> bool:
        return bool(engine.scheduler.has_requests or (engine.connector is not None and not engine.idle))

    def _arrive(self, engine: Loop, arrival: Arrival, naming: "Naming") -> None:
        sent = arrival.turn * engine.tick
        engine.latest = max(sent, math.nextafter(engine.latest, math.inf))  # one request at a time
        chunks = arrival.chunks(engine.cache.block_tokens, named_outputs=self.named_outputs)
        job = engine.add(
            arrival.prompt, arrival.output, limit=arrival.output + arrival.overrun, priority=arrival.priority,
            reads_cache=arrival.reads_cache, ignore_eos=arrival.ignore_eos, arrival=sent, arrived=engine.latest,
            tenant=str(arrival.family), chunks=[naming.content(name) for name in chunks],
            request_id=naming.request(len(engine.jobs)))
        if engine.connector is not None and arrival.transfer is not None:
            engine.connector.transfers[job] = arrival.transfer

    def _abort(self, engine: Loop, *, in_flight: bool) -> None:
        for turn, number, when in self.aborts:
            if turn == engine.turns and when == in_flight and number < len(engine.jobs):
                engine.scheduler.abort(engine.jobs[number])


@frozen
class Naming:
    """The names of requests and contents; by default, their numbers."""

    request: Callable[[int], int] = Factory(lambda: lambda number: number)
    content: Callable[[tuple[int, int]], Any] = Factory(lambda: lambda name: name)


#: Checks beside the invariants of a single history.
NAMES_DO_NOT_MATTER, SAME_AS_PLAIN, NO_ERROR = "names_do_not_matter", "same_as_plain_scheduler", "no_error"
_ORDERED = ("work_conserved", "no_overtaking", "no_admission_after_preemption")


class BackwardsJob(Job):
    """A job whose hash puts it in the opposite order in sets and dictionaries."""

    def __hash__(self) -> int:
        return 1_000_003 - self.number


class ForwardsJob(Job):
    """A job that sets keep in order of its number, so that runs that depend on sets can be repeated."""

    def __hash__(self) -> int:
        return self.number


@frozen
class Subject:
    """The subject of a test: a policy, the scheduler that calls it, and a cache, by default ksim's for that scheduler.

    `starves` and `conserves_work` are as in `check_policy`; `invariants` names the invariants to check.
    """

    policy: Any
    scheduler: Any = Scheduler
    cache: Any = None
    admission: Any = "always"
    starves: bool = False
    conserves_work: bool = True
    invariants: Sequence[str] = field(default=())

    @property
    def name(self) -> str:
        if isinstance(self.policy, str):
            return self.policy
        return self.kind.__name__ if self.is_plain else self.scheduler.__name__

    @property
    def is_plain(self) -> bool:
        """Whether the scheduler is ksim's own."""
        return self.scheduler in (Scheduler, SglangScheduler)

    @property
    def store(self) -> Any:
        """The class of its cache."""
        return self.cache or (RadixCache if is_sglang(self.scheduler) else BlockCache)

    @property
    def kind(self) -> type:
        """The class of the policy."""
        return type(self.fresh())

    def fresh(self) -> Any:
        """A policy without any state of earlier runs."""
        return _fresh("scheduling.policies", self.policy)

    @property
    def checked(self) -> dict[str, Invariant]:
        """The invariants that apply to this policy."""
        left_out = {"bounded_wait"} if self.starves else set()
        proposes = hasattr(self.kind, "propose")
        if proposes:
            left_out |= set(_ORDERED)
        if not self.conserves_work or not self._admits_all:
            left_out |= {"work_conserved"}
        known = SGLANG_INVARIANTS if is_sglang(self.scheduler) else INVARIANTS
        return {name: invariant for name, invariant in known.items()
                if name not in left_out and self.wants(name)}

    @property
    def _admits_all(self) -> bool:
        return bool(_fresh("scheduling.admissions", self.admission) == _fresh("scheduling.admissions", "always"))

    def wants(self, name: str) -> bool:
        return not self.invariants or name in self.invariants

    def play(self, case: Case, naming: Naming | None = None, job_class: type[Job] = ForwardsJob) -> EngineHistory:
        """The history of *case*: until all requests are done, an error is raised, or the run can no longer end."""
        return observe(self.engine(**case.settings), case, naming, job_class)

    def engine(self, **settings: Any) -> Loop:
        """A fresh engine with these *settings*; raises ConfigError if its scheduler refuses the policy."""
        return loop(policy=self.fresh(), admission=_fresh("scheduling.admissions", self.admission),
                    scheduler=self.scheduler, cache=self.store, **settings)


def _fresh(folder: str, named: Any) -> Any:
    """An object of the class *named*, or a copy of the object."""
    found = catalog.find(folder, named) if isinstance(named, str) else named
    return found() if isinstance(found, type) else deepcopy(found)


def observe(engine: Loop, case: Case, naming: Naming | None = None,
            job_class: type[Job] = ForwardsJob) -> EngineHistory:
    """Play *case* on *engine* and record the history."""
    recorder = HistoryRecorder(engine.scheduler)
    engine.scheduler, engine.job_class = recorder, job_class
    history, last = recorder.history, inf
    try:
        for _ in case.play(engine, naming):
            if last == inf and len(history.jobs) == len(case.arrivals):
                last = history.arrived[-1] + longest(history) + 1
            if engine.turns > last:
                break
    except Exception as error:  # a policy may raise anything; that is a fault too
        history.error = error
    return history


def examine(subject: Subject, case: Case) -> tuple[str, int, str] | None:
    """The first invariant that *case* breaks, the step, and the problem; None if all hold."""
    history = subject.play(case)
    for name, invariant in subject.checked.items():
        if found := breach(history, invariant):
            return name, *found
    if history.error is not None:
        return _raised(history) if subject.wants(NO_ERROR) else None
    for name, compare in COMPARED.items():
        if subject.wants(name) and (found := compare(subject, case, history)):
            return name, *found
    return None


def _raised(history: EngineHistory) -> tuple[str, int, str]:
    step = history.moments[-1].step + 1 if history.moments else 1
    return NO_ERROR, step, f"{type(history.error).__name__}: {history.error}"


def _other_names(subject: Subject, case: Case, history: EngineHistory) -> tuple[int, str] | None:
    """The same must happen with other request ids, other names of contents, and sets in another order."""
    other = Naming(request=lambda number: (7919 * number + 13) % 10007, content=lambda name: (name[1], -name[0]))
    return _difference(history, subject.play(case, other, BackwardsJob), "with other names of requests and contents")


def _plain(subject: Subject, case: Case, history: EngineHistory) -> tuple[int, str] | None:
    """The same must happen as on ksim's own scheduler and cache."""
    own = SglangScheduler if is_sglang(subject.scheduler) else Scheduler
    plain = Subject(subject.policy, own, admission=subject.admission)
    if (subject.scheduler, subject.store) == (plain.scheduler, plain.store):
        return None
    return _difference(history, plain.play(case), "on ksim's own scheduler and cache")


COMPARED: dict[str, Callable[[Subject, Case, EngineHistory], tuple[int, str] | None]] = {
    NAMES_DO_NOT_MATTER: _other_names, SAME_AS_PLAIN: _plain}


def _difference(history: EngineHistory, other: EngineHistory, where: str) -> tuple[int, str] | None:
    pairs = zip_longest(digest(history), digest(other))
    for place, (mine, theirs) in enumerate(pairs):
        if mine != theirs:
            step = history.moments[min(place, len(history.moments) - 1)].step
            return step, f"{where}, it differs: {theirs} in place of {mine}"
    return None


#: Cases are replayed with a small model, so that steps are short.
MODEL, GPU = "llama-3.2-1b", "h200"
#: The engine that accepts the small blocks of cases.
ENGINE = "vllm-0.33-any-block"
#: Seconds between two turns of a case: about a step of that model, so that requests arrive in the same steps.
TURN = 0.002


@frozen
class Files:
    """The texts of a scenario file and of the trace that it names."""

    scenario: str
    trace: str
    trace_name: str


def files(case: Case, policy: Any, name: str = "counter_example", note: str = "") -> Files:
    """Write *case* as a scenario and a trace; a comment lists what a scenario cannot hold."""
    shares = bool(case.settings["prefix_caching"])
    trace_name = f"{name}.{'jsonl' if shares else 'csv'}"
    serve, untold = _serve(case)
    untold += ["aborts"] if case.aborts else []
    untold += ["stop tokens that end an output early"] if any(a.overrun for a in case.arrivals) else []
    untold += ["priorities"] if shares and any(a.priority for a in case.arrivals) else []
    comments = [*note.splitlines(), *([f"Not in this file: {', '.join(untold)}."] if untold else [])]
    replay: dict[str, Any] = {"path": trace_name} | ({"chunk_tokens": case.settings["block_tokens"]} if shares else {})
    table = {"model": MODEL, "gpu": GPU, "engine": ENGINE, "serve": serve | {"scheduling_policy": choice(policy)},
             "workload": {"replay": replay}}
    text = "".join(f"# {line}\n" for line in comments) + tomli_w.dumps(table)
    return Files(text, _hashed(case) if shares else _plain_numbers(case), trace_name)


def choice(policy: Any) -> Any:
    """Return *policy* as a scenario writes it: a name, ``module:Class``, or a table with its options."""
    if isinstance(policy, str):
        return policy
    kind = policy if isinstance(policy, type) else type(policy)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(policy, type) or not attrs.has(kind):
        return name
    options = {a.alias: getattr(policy, a.name) for a in attrs.fields(kind)
               if a.init and getattr(policy, a.name) is not None}
    return {"name": name} | options if options else name


def _serve(case: Case) -> tuple[dict[str, Any], list[str]]:
    """The settings by their names in a scenario, and the names of those that a scenario does not have."""
    renamed = {"blocks": "num_gpu_blocks_override", "block_tokens": "block_size",
               "prefix_caching": "enable_prefix_caching"}
    known = {a.name for a in attrs.fields(EngineSettings)}
    serve: dict[str, Any] = {"async_scheduling": False}
    for key, value in case.settings.items():
        serve[renamed.get(key, key)] = value + 1 if key == "blocks" else value  # vLLM counts its null block
    usual = {"prefill_schedule_interval": 1, "long_prefill_token_threshold_adaptive": False}
    untold = [key for key in serve if key not in known and serve[key] != usual.get(key)]
    return {key: value for key, value in serve.items() if key in known}, untold


def _plain_numbers(case: Case) -> str:
    rows = [f"{a.turn * TURN:.6f},{a.prompt},{a.output},{a.priority},{a.family}" for a in case.coming]
    return "\n".join(["arrival,prompt,output,priority,tenant", *rows]) + "\n"


def _hashed(case: Case) -> str:
    """The trace in Mooncake's format, which has one number for each block of the prompt and its prefix."""
    block_tokens, numbers = case.settings["block_tokens"], dict[tuple[int, int], int]()
    rows = []
    for arrival in case.coming:
        names = [(arrival.family, place) for place in range(-(-arrival.prompt // block_tokens))]
        ids = [numbers.setdefault(name, len(numbers)) for name in names]
        rows.append(json.dumps({"timestamp": round(arrival.turn * TURN * 1e3, 3), "input_length": arrival.prompt,
                                "output_length": arrival.output, "hash_ids": ids}))
    return "\n".join(rows) + "\n"


class PolicyFault(AssertionError):
    """`policy` breaks `invariant` in `step`, as `case` shows.

    `scenario` is the text of a scenario file, which `ksim run` replays.  It reads the trace `trace_name`, whose text
    is `trace`, from the same folder.
    """

    def __init__(self, invariant: str, policy: str, step: int, problem: str, case: Case | None = None,
                 scenario: str = "", trace: str = "", trace_name: str = ""):
        super().__init__(invariant, policy, step, problem)
        self.invariant, self.policy, self.step, self.problem = invariant, policy, step, problem
        self.case, self.scenario, self.trace, self.trace_name = case, scenario, trace, trace_name

    def __str__(self) -> str:
        text = f"{self.policy} breaks {self.invariant} in step {self.step}: {self.problem}"
        if self.case:
            text += f"\n\n{describe(self.case)}"
        if self.scenario:
            text += f"\n\n# scenario.toml\n{self.scenario}\n# {self.trace_name}\n{self.trace}"
        return text


def describe(case: Case) -> str:
    """The case in a few lines of text."""
    lines = [f"settings: {', '.join(f'{key}={value}' for key, value in case.settings.items())}"]
    lines += [f"request {number}: {arrival}" for number, arrival in enumerate(case.coming)]
    lines += [f"abort of request {number} in turn {turn}, {'with' if in_flight else 'without'} a batch in flight"
              for turn, number, in_flight in case.aborts]
    return "\n".join(lines)
