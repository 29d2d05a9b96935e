"""How much code eight walks through ksim pass: distinct files and functions of `ksim/` that run, each counted once.

A walk is counted when everything it needs has run before: imports, profiles, and whatever is kept from call to call.
Methods that attrs generates and formulas that are compiled have no file and do not count; comprehensions and lambdas
count as part of the function around them.  Llama 3.1 8B on one H200 is simulated, with the oracle `measured`.

* **new step**: the seconds of a step, as an engine asks for them, at the boost clock.  The step has 16 decodes and a
  prompt chunk.  No step before had as many tokens, but the kernels around them are known.
* **known step**: the same of a step of 16 decodes, each of which has one token more than in the step before.
* **request**: the life of one request, from its arrival to its row of `requests.parquet`.  Engines are built and their
  prices worked out on the way.  Reading the scenario and the trace comes before.
* **split request**: the same of a request that one engine prefills and another decodes, with its KV's transfer between.
* **GEMM**: the estimate of one matrix product of a new size, from its shape on.
* **run -o**: `ksim run -o` of three requests: the scenario read, the run, and all its files, with plots and trace.
* **import line**: `ksim import` of a line with `vllm serve`, up to the scenario's text.
* **chat**: a streamed `POST /v1/chat/completions` to `ksim serve`, from the ASGI application on.  The server is warm.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import httpx
from attrs import frozen

import ksim
from benchmarks.findings import Findings, Sheet
from ksim.cli.keep import Kept, run_and_keep
from ksim.compute.kernels.basic import Gemm
from ksim.deploy.commands import ImportOptions
from ksim.deploy.importing import scenario_text
from ksim.deploy.texts import Pasted
from ksim.flow.batch import Batch
from ksim.flow.costs import AT_BOOST
from ksim.flow.request import Request
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.oracles import estimate
from ksim.scenario.defaults import Deployment
from ksim.scenario.hardware import gpu_of
from ksim.scenario.scenario import ANY_WORKLOAD, Scenario
from ksim.server.http.application import Application
from ksim.server.http.http_metrics import HttpMetrics
from ksim.server.live import Live, warm_up
from ksim.server.metrics import Meter
from ksim.server.openai.api import Api
from ksim.server.openai.kinds import ServedModel
from ksim.server.text import MadeUpTokenizer
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play

ROOT = Path(ksim.__file__).parent
SCENARIO = {"model": "llama-3.1-8b", "gpu": "h200", "oracle": "measured", "serve": {"max_model_len": 16384},
            "workload": ANY_WORKLOAD}
LINE = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384 --max-num-seqs 64"
#: Most files that a walk passes; `tests/test_benchmarks.py` holds it.
AIMS = {"new step": 25, "known step": 7, "request": 81, "split request": 96, "GEMM": 9,
        "run -o": 124, "import line": 72, "chat": 38}

#: Called with 0, 1 and so on, it does the same each time, of something new.
Action = Callable[[int], object]


def actions() -> dict[str, Action]:
    """The walks by name.  Nothing else in this file knows what is inside ksim."""
    site = Deployment.of(Scenario.of(SCENARIO))
    fleet = Fleet.of(Scenario.of(SCENARIO | {"pools": {role: {"role": role} for role in ("prefill", "decode")}}))
    timer, gpu, oracle = site.timers()[0], gpu_of("h200"), plugin("oracles", Choice("measured"))

    def seconds(batch: Batch) -> object:
        return timer.summarize(batch).seconds_at(AT_BOOST)

    return {
        "new step": lambda number: seconds(Batch.of(*[(1, 1000)] * 16, (512 + number, 0))),
        "known step": lambda number: seconds(Batch.of(*[(1, 1000 + number)] * 16)),
        "request": lambda number: play(site, [Request(0, 0.0, 1000 + number, 20)]).requests,
        "split request": lambda number: play(fleet, [Request(0, 0.0, 1000 + number, 20)]).requests,
        "GEMM": lambda number: estimate(oracle, Gemm(100 + number, 4096, 4096), gpu),
        "run -o": _run_and_keep,
        "import line": lambda number: scenario_text([Pasted(LINE)], ImportOptions(gpu="h200")),
        "chat": _chats(site),
    }


def _run_and_keep(number: int) -> None:
    load = {"count": 3, "arrivals": {"process": "poisson", "rate": 8.0}, "output": {"kind": "fixed", "value": 20},
            "prompt": {"kind": "fixed", "value": 100 + number}}
    with TemporaryDirectory() as folder:
        path = Path(folder, "scenario.toml")
        path.write_text(Scenario.of(SCENARIO | {"workload": {"synthetic": load}}).to_toml(), encoding="utf-8")
        run_and_keep(Scenario.read(path), Kept(Path(folder, "run"), True, True, None), quiet=True, jobs=1)


def _chats(site: Deployment) -> Action:
    """Chats with a server of *site*, put together as `ksim serve` does it, in simulated time that flies."""
    live = Live(Fleet.of(site), 1e6)
    warm_up(live)
    served, application = ServedModel.of(live.fleet), Application()
    meter, http = Meter(live, served.names[0]), HttpMetrics(application, application.paths)
    application.api = Api(live, served, MadeUpTokenizer(served.vocabulary), on_abort=meter.aborted)

    async def chat(number: int) -> None:
        playing = asyncio.create_task(live.run())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(http), base_url="http://ksim") as client:
            answer = await client.post("/v1/chat/completions", json={
                "messages": [{"role": "user", "content": f"Hello {number}"}], "max_tokens": 10, "ignore_eos": True,
                "stream": True})
        playing.cancel()
        answer.raise_for_status()

    return lambda number: asyncio.run(chat(number))


@frozen
class Walk:
    """The code that a walk passed: (file, function) pairs."""

    passed: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, action: Action) -> "Walk":
        """Take it three times and count the last."""
        action(0)
        action(1)
        return cls(frozenset(_passed(lambda: action(2))))

    @property
    def files(self) -> dict[str, int]:
        """Every file, and how many of its functions ran."""
        return dict(sorted(Counter(file for file, _ in self.passed).items()))


def _passed(action: Callable[[], object]) -> Iterator[tuple[str, str]]:
    codes = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    for code in codes:
        file = Path(code.co_filename)
        if file.is_relative_to(ROOT):
            yield file.relative_to(ROOT).as_posix(), _function(code.co_qualname)


def _function(name: str) -> str:
    """The function that *name* is part of: a comprehension, a generator or a lambda is part of the one around it."""
    return name.partition(".<locals>.<")[0]


def findings(listed: bool = False) -> Findings:
    """Files and functions of each walk; where they are *listed*, the files by name, too."""
    walks = {name: Walk.of(action) for name, action in actions().items()}
    counts = [(name, str(len(walk.files)), str(AIMS[name]), str(len(walk.passed))) for name, walk in walks.items()]
    sheets = [Sheet("Files and functions of ksim/ that a walk passes", ("walk", "files", "aim", "functions"), counts)]
    return Findings([*sheets, *map(_listed, walks, walks.values())] if listed else sheets)


def _listed(name: str, walk: Walk) -> Sheet:
    return Sheet(f"Files that the walk {name!r} passes, and how many functions of each", ("file", "functions"),
                 [(file, str(count)) for file, count in walk.files.items()])
