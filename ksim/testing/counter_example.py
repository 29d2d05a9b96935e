"""A case that breaks an invariant: the error that reports it, and the files that `ksim run` replays."""

import json
from typing import Any

import attrs
import tomli_w
from attrs import frozen

from ksim.specs.settings import EngineSettings
from ksim.testing.case import Case

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
    return Files(text, _hashed(case) if shares else _plain(case), trace_name)


def choice(policy: Any) -> Any:
    """How a scenario names *policy*: a name, ``module:Class``, or a table with its options."""
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


def _plain(case: Case) -> str:
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
