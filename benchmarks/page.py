"""How long `ksim report` takes as a user types it, and how large its page is."""

import tempfile
from functools import partial
from pathlib import Path

from attrs import frozen

from benchmarks.apart import best, spent
from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.workloads import conversations
from benchmarks.yardstick import beside
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.views.result import Result

#: Goals for a run of 5,000 requests.
SECONDS, MEGABYTES = 2.0, 3.0
QUICKSTART = Path("scenarios/quickstart.toml")


@frozen
class Page:
    """A page that was written: of what, in how many CPU seconds, of how many MB; `yardstick` is this machine's."""

    of: str
    requests: int
    seconds: float
    megabytes: float
    yardstick: float

    @property
    def cells(self) -> tuple[str, ...]:
        return self.of, f"{self.requests:,}", f"{self.seconds:.2f}", f"{self.yardstick:.2f}", f"{self.megabytes:.2f}"


def findings() -> Findings:
    """The pages of the quickstart and of 5,000 conversations, best of three."""
    pages = [_page("quickstart", Scenario.read(QUICKSTART)), _page("conversations", Scenario.of(conversations()))]
    last = pages[-1]
    goals = [Goal("page of 5,000 requests", SECONDS, "CPU s").judged(last.seconds, last.yardstick),
             Goal("its size", MEGABYTES, "MB", timed=False).judged(last.megabytes, last.yardstick)]
    columns = ("run", "requests", "CPU s", "SimPy us/event", "MB")
    sheet = Sheet("`ksim report`: CPU time of the whole process", columns, [page.cells for page in pages])
    return Findings([sheet], goals)


def _page(name: str, scenario: Scenario) -> Page:
    result = simulate(scenario)
    with tempfile.TemporaryDirectory() as folder:
        run, page = Path(folder) / "run", Path(folder) / "report.html"
        result.save(run, plots=False, trace=False)
        report = partial(spent, "-m", "ksim", "report", str(run), "-o", str(page))
        figures, yardstick = beside(partial(best, report, "seconds"))
        return Page(name, _requests(result), figures["seconds"], page.stat().st_size / 1e6, yardstick)


def _requests(result: Result) -> int:
    return int(result.summary["completed"] + result.summary["failed"] + result.summary["unfinished"])
