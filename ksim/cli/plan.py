"""`ksim plan`: the cheapest deployment of a model that carries a load within latency targets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.capacity import Over, Requests, Slo, StudySeed, progress, stopped
from ksim.cli.flags import JsonFile, Wide, console, given, say, write_json
from ksim.cli.run import Settings, changed
from ksim.cli.studies import Jobs, Resume
from ksim.foundation.errors import ConfigError, KsimError

if TYPE_CHECKING:
    from ksim.scenario.scenario import Scenario
    from ksim.study.planning.result import DeploymentPlan

_LOAD = "Load, where no scenario says it"
ScenarioFile = Annotated[Path | None, typer.Argument(help="scenario file (TOML): the model, the load, and what all"
                                                     " candidates share; or say these with --model and the flags below",
                                                     show_default=False)]
Model = Annotated[str | None, typer.Option(help="catalogue name, Hugging Face config.json, or a folder with one")]
Gpus = Annotated[list[str] | None, typer.Option("--gpu", metavar="NAME[:COUNT][=DOLLARS]", help="GPUs that may be had,"
                                                " how many at most, and their price an hour, such as h100 or"
                                                " h100:16=2.5; may be repeated; by default the scenario's")]
Rate = Annotated[float | None, typer.Option("--rate", help="requests/s to carry; by default the scenario's")]
Minimize = Annotated[list[str] | None, typer.Option("--minimize", metavar="gpus|usd|joules|carbon", help="what shall be"
                                                    " least; repeated, a front of all, and the best by their product;"
                                                    " by default usd where GPUs have prices, else gpus")]
Time = Annotated[str, typer.Option("--time", help="after so long, no further finalist is simulated")]
Finalists = Annotated[int, typer.Option(min=1, help="how many candidates are simulated at most")]
Replications = Annotated[int, typer.Option(min=2, help="replications of each simulation, at most")]
InputLen = Annotated[int | None, typer.Option("--input-len", min=1, help="tokens of each prompt",
                                              rich_help_panel=_LOAD)]
OutputLen = Annotated[int | None, typer.Option("--output-len", min=1, help="tokens of each output",
                                               rich_help_panel=_LOAD)]
TraceFile = Annotated[Path | None, typer.Option("--trace", help="a trace whose requests come at --rate",
                                                rich_help_panel=_LOAD)]
Bench = Annotated[str | None, typer.Option(metavar="LINE|FILE", help="the line of `vllm bench serve` or"
                                           " sglang.bench_serving", rich_help_panel=_LOAD)]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="write plan.json, best.toml,"
                                             " plots/front.png, and a row of each run")]
Force = Annotated[bool, typer.Option("--force", help="replace an earlier study in the output directory")]


def plan(
    scenario: ScenarioFile = None, model: Model = None, gpu: Gpus = None, rate: Rate = None, slo: Slo = None,
    minimize: Minimize = None, over: Over = None, time: Time = "60s", finalists: Finalists = 5,
    input_len: InputLen = None, output_len: OutputLen = None, trace: TraceFile = None, bench: Bench = None,
    requests: Requests = None, replications: Replications = 3, output: Output = None, json_file: JsonFile = None,
    wide: Wide = False, jobs: Jobs = None, settings: Settings = None, seed: StudySeed = None, force: Force = False,
    resume: Resume = False,
) -> None:
    """Find the cheapest deployment that carries a load within latency targets: estimate all, simulate the best."""
    from ksim.foundation import catalog
    from ksim.scenario.scenario import setting
    from ksim.study.planning.ask import plan as ask
    from ksim.study.planning.ask import with_engine

    load = {"--input-len": input_len, "--output-len": output_len, "--trace": trace, "--bench": bench}
    asked = _scenario(scenario, model, gpu or [], rate, load)
    said = {**(catalog.read(scenario) if scenario else {}), **dict(setting(text) for text in settings or [])}
    with stopped(output), progress() as told:
        found = ask(changed(asked, settings, seed), rate, slo or (), gpu or (), minimize or (),
                    with_engine(over or (), said), time=time,
                    finalists=finalists, requests=requests, replications=replications, jobs=jobs,
                    output=output, force=force, resume=resume, title=scenario.stem if scenario else "",
                    on_progress=told)
    _show(found, output)
    write_json(json_file, found.document)
    if found.best is None:
        raise KsimError(found.sentence)


def _scenario(path: Path | None, model: str | None, gpus: list[str], rate: float | None, load: dict[str, Any]
              ) -> "Scenario":
    """The scenario at *path*, or one of the flags."""
    from ksim.scenario.scenario import Scenario

    said = [flag for flag, value in load.items() if value is not None]
    if path is not None:
        if model is not None or said:
            raise ConfigError(said[0] if said else "--model", f"{path} says it; leave it out, or change the scenario"
                                                              " with --set")
        return Scenario.read(path)
    if model is None:
        raise ConfigError("--model", "name a model, such as llama-3.3-70b, or give a scenario file")
    if not gpus:
        raise ConfigError("--gpu", "name the GPUs that may be had, such as h100, or h100=2.5 with dollars an hour")
    table = {"model": model, "gpu": gpus[0].partition("=")[0].partition(":")[0], **_load(rate, said, load)}
    return Scenario.of(table, "plan", Path.cwd())


def _load(rate: float | None, said: list[str], load: dict[str, Any]) -> dict[str, Any]:
    """The workload that the flags *said* describe; raises ConfigError for none, and for several."""
    lengths = [flag for flag in said if flag.endswith("-len")]
    if len(said) != (len(lengths) or 1) or len(lengths) == 1:
        raise ConfigError(said[0] if said else "--input-len", "say the load in one way: --input-len with --output-len,"
                                                              " --trace, or --bench")
    if load["--bench"] is not None:
        from ksim.deploy.commands import ImportOptions
        from ksim.deploy.workload import bench_of

        return bench_of(load["--bench"], ImportOptions()).scenario
    if load["--trace"] is not None:
        return {"workload": {"replay": given({"path": str(load["--trace"]), "rate": rate})}}
    if rate is None:
        raise ConfigError("--rate", "name the requests/s to carry")
    prompt, output = ({"kind": "fixed", "value": load[flag]} for flag in lengths)
    return {"workload": {"synthetic": {"count": 1000, "arrivals": {"process": "poisson", "rate": rate},
                                       "prompt": prompt, "output": output}}}


def _show(found: "DeploymentPlan", output: Path | None) -> None:
    """Print the answer, in Markdown where there is no terminal, and the lines that start it."""
    screen = console()
    texts = [found.text] if found.best else []
    if found.best and screen.is_terminal:
        screen.print(found.sentence, style="bold", markup=False, highlight=False)
        screen.print(found.table)
        texts = found.remarks
    for text in texts:
        screen.print(text, markup=False, highlight=False, soft_wrap=not screen.is_terminal)
    if lines := _lines(found):
        screen.print(f"\n{lines}", markup=False, highlight=False, soft_wrap=True, end="")
    if output is not None:
        say(f"written to {output}; look deeper: ksim run {output / 'best.toml'}, ksim capacity {output / 'best.toml'}")


def _lines(found: "DeploymentPlan") -> str:
    """The lines that start the best deployment's engines; "" where there is none, or no flags of an engine say it."""
    from ksim.deploy.exporting import launch_lines

    best = found.best_scenario
    try:
        return launch_lines(best) if best is not None else ""
    except KsimError:
        return ""
