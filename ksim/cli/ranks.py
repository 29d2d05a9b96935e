"""`ksim ranks`: which GPUs the others wait for, why, what that costs, and a picture of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.flags import JsonInFolder, Wide, console, write_json
from ksim.cli.run import Seed, Settings, changed
from ksim.foundation import process
from ksim.foundation.errors import ConfigError
from ksim.results.numbers import OF_RANKS, number_of
from ksim.views.tables import Table
from ksim.views.wording import measure, number, percent, written

if TYPE_CHECKING:
    from ksim.flow.events import ExpertsMoved
    from ksim.results.ranks import Ranks
    from ksim.scenario.scenario import Scenario
    from ksim.study.ranks import RankCosts
    from ksim.views.result import Result

#: The most GPUs, and the most rearrangements of experts, with a row of their own.
_MOST, _MOVES = 16, 5
_OFF = {"clock": "all GPUs as fast", "host": "no late hosts", "link": "all links as fast",
        "experts": "all experts as full", "processes": "no processes of your own"}
_ENDS = (".png", ".svg")


@process.dedicated()
def ranks(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="directory that `ksim run -o` has written, whose scenario"
                                        " is run again, or a scenario file; with detail = \"rank\"")],
    settings: Settings = None, seed: Seed = None,
    costs: Annotated[bool, typer.Option("--costs/--no-costs", help="run again without each cause of waiting, to say"
                                        " what it costs")] = True,
    json_file: JsonInFolder = None, wide: Wide = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="PICTURE", help="draw one slow step, rank by"
                                                " rank, as .png or .svg")] = None,
) -> None:
    """Say which GPUs the others wait for, why, and what each cause costs in latency, throughput and joules."""
    from ksim.flow.events import ExpertsMoved
    from ksim.scenario.scenario import Scenario

    if output is not None and output.suffix.lower() not in _ENDS:
        raise ConfigError("-o", f"{output} is no picture; name a file that ends in {' or '.join(_ENDS)}")
    scenario = changed(Scenario.read(run / "scenario.toml" if run.is_dir() else run), settings, seed)
    result, priced = _played(scenario, costs)
    found, moves, screen = result.ranks, [*result.log.of(ExpertsMoved)], console()
    assert found is not None, "its GPUs may differ"
    screen.print(f"\n[bold]{run}[/]: {result.subject}; GPUs waited for others"
                 f" {percent(result.summary['rank_wait_share'])} of the time")
    for shown in (_of_each(found), _path(found), *([_moves(moves)] if moves else []),
                  *([_costs(priced)] if priced and priced.without else [])):
        screen.print(shown)
    for sentence in _said(found, priced):
        screen.print(f"* {sentence}", markup=False)
    write_json(json_file, _content(run, found, moves, priced), make_folder=True)
    if output is not None:
        screen.print(_drawn(result, output), markup=False)


def _played(scenario: "Scenario", costs: bool) -> "tuple[Result, RankCosts | None]":
    """The run, and what causes cost, with a count of the runs that have ended."""
    from ksim.cli.keep import Progress
    from ksim.study.ranks import played, rank_costs

    with Progress(None, quiet=False, what="runs", every=1) as progress:
        result = played(scenario)
        progress.advance()
        return result, rank_costs(result, scenario, progress.advance) if costs else None


def _of_each(found: "Ranks") -> Table:
    """A row for each GPU, those that others wait for first, and one for the rest of each engine."""
    from ksim.views.figures.ranks import TITLES, share, shown_parts

    parts, stages = shown_parts(found), bool(found.pipeline_stages.any())
    made = Table.of("", ">engine", *([">stage"] if stages else []), ">last", *(f">{TITLES[part]}" for part in parts),
                    title="What each GPU did, of the run; \"last\": the others waited for it, of its steps",
                    hide=("stage", "idle", "engine"))
    for name, places in _grouped(found):
        stage = [str(found.pipeline_stages[places[0]])] if stages else []
        shares = (float(found.seconds[part][places].mean()) / max(found.duration, 1e-300) for part in parts)
        made.add_row(name, str(found.engines[places[0]]), *stage, share(float(found.last[places].sum())),
                     *map(share, shares))
    return made


def _grouped(found: "Ranks") -> Iterator[tuple[str, Any]]:
    """The GPUs with rows of their own, and the rest by engine and stage: a name, and the places."""
    own, rest = found.order[:_MOST], found.order[_MOST:]
    for place in own.tolist():
        yield f"GPU {found.gpus[place]}", [place]
    for key in dict.fromkeys(zip(found.engines[rest].tolist(), found.pipeline_stages[rest].tolist(), strict=True)):
        places = rest[(found.engines[rest] == key[0]) & (found.pipeline_stages[rest] == key[1])]
        yield f"{len(places)} others, mean", places


def _path(found: "Ranks") -> Table:
    from ksim.views.figures.ranks import path_rows

    rows = ((name, number(seconds), percent(share)) for name, seconds, share in path_rows(found))
    return Table.of("", ">seconds", ">of the steps", rows=rows, title="What the critical path of steps consists of")


def _moves(moves: "Sequence[ExpertsMoved]") -> Table:
    """A row for each of the first rearrangements of experts, and one for all of them together."""
    stages = any(move.stage for move in moves)
    made = Table.of("", ">engine", *([">stage"] if stages else []), ">ms", ">experts", ">bytes", ">before", ">after",
                    title="What EPLB moved; \"before\", \"after\": rows of the fullest rank over the mean",
                    hide=("stage", "engine"))
    for move in moves[:_MOVES]:
        stage = [str(move.stage)] if stages else []
        made.add_row(f"at {number(move.start)} s", str(move.engine), *stage, *_moved([move]))
    if len(moves) > 1:
        made.add_section()
        made.add_row(f"all {len(moves):,}, mean before and after", "", *([""] if stages else []), *_moved(moves))
    return made


def _moved(moves: "Sequence[ExpertsMoved]") -> Iterator[str]:
    """The milliseconds, experts and bytes of *moves* together, and the mean of how full ranks are before and after."""
    yield number(1e3 * sum(move.time - move.start for move in moves))
    yield number(sum(move.experts for move in moves))
    yield measure(sum(move.bytes for move in moves), "B")
    for fullest in ([move.before for move in moves], [move.after for move in moves]):
        yield f"{sum(fullest) / len(fullest):.3f}"


def _costs(priced: "RankCosts") -> Table:
    """A row for the run as it is, and one for the run without each cause, with how much less or more that is."""
    made = Table.of("", *(f">{number_of(key).title}" for key in OF_RANKS),
                    title="The same run without each cause, under the same random numbers")
    made.add_row("as it is", *(written(number_of(key), priced.base[key]) for key in OF_RANKS))
    for cause, row in priced.without.items():
        made.add_row(f"{cause}: {_OFF[cause]}" if cause in _OFF else f"without {cause}", *(
            f"{written(number_of(key), row[key])} ({_relative(row[key], priced.base[key])})" for key in OF_RANKS))
    return made


def _relative(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{value / base - 1:+.1%}"


def _said(found: "Ranks", priced: "RankCosts | None") -> Iterator[str]:
    """Who is the last most often, and what cannot be switched off."""
    from ksim.views.figures.ranks import WHY, shown_parts

    first = found.order[0]
    if found.last[first] > 0:
        yield f"GPU {found.gpus[first]} is the last in {percent(float(found.last[first]), 0)} of its steps' time"
    else:
        yield "no GPU waited for another"
    if priced is None:
        return
    for cause in shown_parts(found):
        if cause in WHY and cause not in priced.without:
            yield (f"{cause}: {WHY[cause]}, which cannot be switched off; GPUs wait for it"
                   f" {percent(found.shares()[cause])} of the time")


def _content(run: Path, found: "Ranks", moves: "Sequence[ExpertsMoved]", priced: "RankCosts | None"
             ) -> dict[str, Any]:
    rows = [{"gpu": int(found.gpus[place]), "engine": int(found.engines[place]),
             "stage": int(found.pipeline_stages[place]), "last_share": float(found.last[place]),
             "seconds": {name: float(seconds[place]) for name, seconds in found.seconds.items()}}
            for place in found.order.tolist()]
    return {"run": str(run), "duration": found.duration, "gpus": rows, "shares": found.shares(),
            "critical_path": {"seconds": found.step_seconds, "parts": found.path},
            **({"rearrangements": [_rearrangement(move) for move in moves]} if moves else {}),
            **({"costs": priced.content} if priced else {})}


def _rearrangement(move: "ExpertsMoved") -> dict[str, Any]:
    return {"start": move.start, "seconds": move.time - move.start, "engine": move.engine, "stage": move.stage,
            "experts": move.experts, "bytes": move.bytes, "before": move.before, "after": move.after}


def _drawn(result: "Result", output: Path) -> str:
    from ksim.views.figures.ranks import rank_charts

    for _, picture in rank_charts(result.history, result.subject):
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            return f"drawn to {picture.save(output)}"
        except OSError as error:
            raise ConfigError("-o", f"{output}: cannot be written: {error.strerror or error}") from error
    return "! no step has a timeline, so nothing is drawn"
