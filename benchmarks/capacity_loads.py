"""The set-ups whose capacity is asked again and again, and who else computes it."""

from typing import Any

from attrs import frozen

from ksim.scenario.scenario import Scenario
from ksim.study.capacity.targets import Target

ARRIVALS = {"process": "poisson", "rate": 10}


@frozen
class Load:
    """A scenario and its target, with so many requests a replication."""

    name: str
    table: dict[str, Any]
    target: str
    requests: int

    @property
    def scenario(self) -> Scenario:
        return Scenario.of(self.table)

    @property
    def targets(self) -> tuple[Target, ...]:
        return (Target.parse(self.target),)


def _table(serve: dict[str, Any], prompt: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
    return {"model": "llama-3.2-1b", "gpu": "l4", "serve": {"max_model_len": 2048, **serve},
            "workload": {"synthetic": {"arrivals": ARRIVALS, "prompt": prompt, "output": output, "max_tokens": 2000}}}


CHATS: dict[str, Any] = {"prompt": {"kind": "lognormal", "median": 200, "sigma": 0.8},
                         "output": {"kind": "lognormal", "median": 12, "sigma": 0.7}}
#: One request at a time, all alike: an M/D/1 queue but for the host's time.
ONE = Load("one request at a time", _table({"max_num_seqs": 1}, {"kind": "fixed", "value": 200},
                                           {"kind": "fixed", "value": 1}), "queue:p90:60ms", 1000)
#: Continuous batching of up to 32 sequences.
BATCHED = Load("continuous batching", _table({"max_num_seqs": 32}, **CHATS), "ttft:p95:500ms", 1000)
#: The same with fewer sequences.
FEWER = Load("continuous batching of 24", _table({"max_num_seqs": 24}, **CHATS), "ttft:p95:500ms", 1000)
