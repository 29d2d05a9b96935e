"""Simulate a recorded run: the same requests, sent at the same times, to an engine with the same settings."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from ksim.flow.request import Request
from ksim.report.result import Result
from ksim.simulation.deployment import Deployment
from ksim.simulation.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.simulate import play
from ksim.simulation.sizing import limits
from ksim.validation.serving.recordings import RecordedRun, Recording, serve_table

#: Arguments of vLLM that change how a server starts, and not what it does.
_BESIDE = {"model", "load_format", "skip_tokenizer_init", "dtype", "disable_log_stats", "seed", "tokenizer",
           "trust_remote_code", "served_model_name", "hf_overrides"}


@frozen
class ServerSpec:
    """The server of recordings, which their files do not describe; `oracle` is written as in a scenario."""

    gpu: str = "h200"
    engine: str = "vllm-0.22"
    host: str = "default"
    oracle: Any = None


def deployment_of(recording: Recording, server: ServerSpec) -> tuple[Deployment, list[str]]:
    """The deployment of *recording* on *server*, and the names of its arguments that are not simulated.

    Raises KsimError for a model or settings that cannot be simulated.
    """
    serve, others = serve_table(recording)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(recording.config))
        table: dict[str, Any] = {"model": str(path), "gpu": server.gpu, "engine": server.engine,
                                 "host": server.host, "serve": serve, "workload": ANY_WORKLOAD}
        if server.oracle is not None:
            table["oracle"] = server.oracle
        deployment = Deployment.of(Scenario.of(table, str(recording.path)))
    limits(deployment.serve, deployment.version)  # refuses what vLLM would not start with
    return deployment, sorted({*others} - _BESIDE)


def simulate(deployment: Deployment, run: RecordedRun) -> Result:
    """Serve the requests of *run* with *deployment*."""
    scenario = deployment.scenario
    scenario = evolve(scenario, workload=evolve(scenario.workload, max_concurrency=run.concurrency))
    return play(evolve(deployment, scenario=scenario), requests(run))


def requests(run: RecordedRun) -> Iterator[Request]:
    """The requests of *run* at their recorded times; with a limited concurrency, the client sends them when it may."""
    for number, sent in enumerate(run.requests):
        blocks = (sent.prompt + sent.output) // 16
        shared = sent.prefix // 16 if sent.prefix_group is not None else 0
        names = [(run.name, "shared", sent.prefix_group, i) if i < shared else (run.name, sent.index, i)
                 for i in range(blocks + 1)]
        arrival = 0.0 if run.concurrency else max(0.0, sent.sent)
        yield Request(number, arrival, sent.prompt, sent.output, names, 16)
