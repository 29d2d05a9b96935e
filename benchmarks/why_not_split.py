"""`python -m benchmarks.why_not_split [--write]`: one engine beside two that prefill for two others, by load."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.pages import put
from ksim.results.attribution import Breakdown, paired
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.views.insights import reasons
from ksim.views.result import Result
from ksim.views.run_directory import Whole
from ksim.views.wording import number, percent

ROOT = Path(__file__).parents[1]
PAGE, FOLDER = ROOT / "docs" / "evidence" / "why_not_split.md", ROOT / "scenarios" / "fleets"
RATES = (8, 24, 40)
_REPLICAS = {"serve.tensor_parallel_size": 1, "serve.data_parallel_size": 4}
#: What is compared: its name, the scenario, and what changes in it.
SIDES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "TP4": ("tp4", {}), "4 replicas": ("tp4", _REPLICAS), "2P2D": ("2p2d", {})}
_COLUMNS = ("requests/s", "", "TTFT median, p99 (ms)", "TPOT median, p99 (ms)", "ITL p99 (ms)", "within targets",
            "GPUs busy")


def played(side: str, rate: float) -> Result:
    """One of `SIDES` at this *rate*, in requests/s."""
    name, changes = SIDES[side]
    return simulate(Scenario.read(FOLDER / f"{name}.toml").with_values(
        {**changes, "workload.synthetic.arrivals.rate": float(rate)}))


def row(side: str, rate: float, summary: Mapping[str, Any]) -> str:
    """A row of the table of loads."""
    def pair(name: str) -> str:
        return f"{number(summary[f'median_{name}_ms'])}, {number(summary[f'p99_{name}_ms'])}"

    cells = (str(rate), side, pair("ttft"), pair("tpot"), number(summary["p99_itl_ms"]),
             percent(summary["slo_attainment"], 0), _busy(summary))
    return f"| {' | '.join(cells)} |"


def _busy(summary: Mapping[str, Any]) -> str:
    pools = summary.get("pools", {})
    return ", ".join(f"{name} {percent(pool['gpu_busy_share'], 0)}" for name, pool in pools.items()) or percent(
        summary["gpu_busy_share"], 0)


def loads() -> Iterator[str]:
    """The table of loads."""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---" * len(_COLUMNS) + "|"
    for rate in RATES:
        for side in SIDES:
            yield row(side, rate, played(side, rate).summary)


def why(one: Result, other: Result) -> Iterator[str]:
    """The reasons that `ksim diff` gives, as a list."""
    with TemporaryDirectory() as folder:
        saved = [result.save(Path(folder) / name, plots=False, trace=False)
                 for name, result in (("first", one), ("second", other))]
        first, second = paired(*map(Breakdown.read, saved))
        before, after = first.statistics(), second.statistics()
        pairs = {key: (before[key], after[key]) for key in before}
        for sentence in reasons(Whole.read(saved[0]), Whole.read(saved[1]), first.names, pairs):
            yield f"    {sentence}"


def main() -> None:
    lists = {"reasons": list(why(played("TP4", RATES[0]), played("2P2D", RATES[0]))), "loads": list(loads())}
    for name, lines in lists.items():
        print("\n".join(lines))
        if "--write" in sys.argv[1:]:
            put(PAGE, name, lines)


if __name__ == "__main__":
    main()
