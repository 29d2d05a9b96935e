"""A recorded run, simulated: the same requests, sent at the same times, to an engine with the same settings."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from ksim.flow.request import Request
from ksim.report.result import Result
from ksim.simulation.assembly import Site
from ksim.simulation.scenario import ANY_WORKLOAD, Scenario
from ksim.simulation.simulate import play
from ksim.simulation.sizing import limits
from ksim.validation.serving.recordings import Recording, Run, serve_table

#: Arguments of vLLM that say how a server is started, not what it does.
_BESIDE = {"model", "load_format", "skip_tokenizer_init", "dtype", "disable_log_stats", "seed", "tokenizer",
           "trust_remote_code", "served_model_name", "hf_overrides"}


@frozen
class Setting:
    """Where recordings were made, as no file of theirs says it; `oracle` is what a scenario may say of one."""

    gpu: str = "h200"
    engine: str = "vllm-0.22"
    host: str = "default"
    oracle: Any = None


def site(recording: Recording, setting: Setting) -> tuple[Site, list[str]]:
    """The engine of *recording*, and the names of its arguments that are not simulated.

    Raises KsimError for a model or settings that cannot be simulated.
    """
    serve, others = serve_table(recording)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(recording.config))
        table: dict[str, Any] = {"model": str(path), "gpu": setting.gpu, "engine": setting.engine,
                                 "host": setting.host, "serve": serve, "workload": ANY_WORKLOAD}
        if setting.oracle is not None:
            table["oracle"] = setting.oracle
        built = Site.of(Scenario.of(table, str(recording.path)))
    limits(built.scenario.serve, built.version)  # refuses what vLLM would not start with
    return built, sorted({*others} - _BESIDE)


def simulate(built: Site, run: Run) -> Result:
    """Serve the requests of *run*."""
    workload = evolve(built.scenario.workload, max_concurrency=run.concurrency)
    return play(evolve(built, scenario=evolve(built.scenario, workload=workload)), requests(run))


def requests(run: Run) -> Iterator[Request]:
    """What was sent, by the times at which it was; a client that held back decides them anew."""
    for number, sent in enumerate(run.requests):
        blocks = (sent.prompt + sent.output) // 16
        shared = sent.prefix // 16 if sent.prefix_group is not None else 0
        names = [(run.name, "shared", sent.prefix_group, i) if i < shared else (run.name, sent.index, i)
                 for i in range(blocks + 1)]
        arrival = 0.0 if run.concurrency else max(0.0, sent.sent)
        yield Request(number, arrival, sent.prompt, sent.output, names, 16)
