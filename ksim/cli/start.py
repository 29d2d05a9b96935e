"""`ksim new`: a scenario to start from.

`ksim new --schema`: the JSON Schema of scenario files, for editors.

`ksim doctor`: what is installed, what it can do, and whether it works.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ksim.cli import doctor_checks
from ksim.cli.doctor_checks import BROKEN, NOTE, OK, Finding
from ksim.cli.flags import JsonFile, Wide, console, say, write_json
from ksim.foundation import files
from ksim.foundation.errors import KsimError
from ksim.views.tables import Table

#: The file that is written where none is named.
USUAL = Path("scenario.toml")


def new(
    path: Annotated[Path | None, typer.Argument(metavar="FILE", help="scenario file to write", show_default=str(USUAL))]
    = None,
    template: Annotated[str, typer.Option("--template", "-t", metavar="NAME", help="the service that it is about, such"
                                          " as chat, rag, agents, reasoning, batch, fleet or pd; see `ksim list"
                                          " templates`")] = "chat",
    model: Annotated[str, typer.Option(help="catalogue name or path of a Hugging Face config.json")] = "llama-3.1-8b",
    gpu: Annotated[str, typer.Option(help="GPU, in its usual system")] = "h200",
    tp: Annotated[int | None, typer.Option("--tensor-parallel-size", "--tp", min=1, help="GPUs that share each layer;"
                                           " by default the fewest on which the model fits")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="print the JSON Schema of scenario files instead, with which"
                                         " editors complete keys and mark mistakes; with FILE, write it")] = False,
    force: Annotated[bool, typer.Option("--force", help="overwrite the file")] = False,
) -> None:
    """Write a commented scenario that runs as it is, with every key, its meaning and its default."""
    from ksim.scenario.schema import starter

    if schema:
        if path is not None and not path.is_dir():
            files.check_new(path, force)
        write_schema(path)
        return
    path = path or USUAL
    files.check_scenario(path, force)
    files.write(path, starter(model, gpu, tp, path.parent, template))
    say(f"wrote {path}; now: ksim run {path}")


def schema(
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="file to write; by default it is"
                                                " printed")] = None,
) -> None:
    """Do as `ksim new --schema`, under the name of earlier releases."""
    write_schema(output)


def write_schema(output: Path | None) -> None:
    """Print the JSON Schema of scenario files, or write it to *output*; raises ConfigError where that cannot be."""
    from ksim.foundation.errors import ConfigError
    from ksim.scenario.schema import FILE

    text = FILE.read_text(encoding="utf-8")
    if output is None:
        sys.stdout.write(text)
        return
    if output.is_dir():
        raise ConfigError(str(output), "cannot be written: it is a directory; name a file in it, such as"
                                       " scenario.schema.json")
    files.write(output, text)
    say(f"written to {output}; begin a scenario beside it with the line: #:schema {output.name}")


#: Five requests on one GPU, priced by rooflines, and what they have come to on every machine so far.
SCENARIO: dict[str, Any] = {
    "model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "serve": {"max_model_len": 4096},
    "workload": {"synthetic": {"count": 5, "arrivals": {"process": "constant", "rate": 100.0},
                               "prompt": {"kind": "fixed", "value": 200}, "output": {"kind": "fixed", "value": 10}}}}
DIGITS = {"completed": 5, "total_output_tokens": 50, "duration": 0.061050500000000035,
          "mean_ttft_ms": 7.8955800000000185, "energy_joules": 16.9810435678226}
#: Processors may round the last digits differently.
_APART = 1e-9
_MARKS = {OK: "", NOTE: "note: ", BROKEN: "broken: "}


def doctor(json_file: JsonFile = None, wide: Wide = False) -> None:
    """Say what is installed and what it can do, run a self-check, and end with 1 where something is broken."""
    findings = [*_findings()]
    broken = [finding for finding in findings if finding.status == BROKEN]
    write_json(json_file, {"ok": not broken, "findings": [
        {"area": finding.area, "name": finding.name, "value": finding.value, "status": finding.status,
         "remedy": finding.remedy or None} for finding in findings]})
    console().print(_shown(findings))
    if broken:
        problems = "; ".join(f"{finding.name}: {finding.text}: {finding.remedy}" for finding in broken)
        raise KsimError(f"{len(broken)} of {len(findings)} checks found something broken: {problems}")
    say("all is well; try: ksim new, then ksim run scenario.toml")


def _findings() -> Iterator[Finding]:
    yield from doctor_checks.versions()
    yield from doctor_checks.extras()
    yield from doctor_checks.data()
    yield from doctor_checks.caches()
    yield from doctor_checks.shell()
    yield from doctor_checks.machine()
    yield _self_check()


def _self_check() -> Finding:
    """Whether a small run comes to the digits that it comes to elsewhere."""
    remedy = f"{doctor_checks.REINSTALL}; if that does not help, report it with this table"
    try:
        from ksim.scenario.scenario import Scenario
        from ksim.simulation.simulate import simulate

        summary: Any = simulate(Scenario.of(SCENARIO)).summary
    except Exception as error:  # whatever an installation in pieces raises is what the user is here for
        return Finding("self-check", "run", None, f"{type(error).__name__}: {error}", BROKEN, remedy)
    wrong = [f"{key} is {summary[key]!r}, not {value!r}" for key, value in DIGITS.items()
             if abs(summary[key] - value) > _APART * abs(value)]
    if wrong:
        return Finding("self-check", "run", False, "; ".join(wrong), BROKEN, remedy)
    return Finding("self-check", "run", True, f"{len(DIGITS)} numbers of a run of {DIGITS['completed']} requests are as"
                                              f" elsewhere")


def _shown(findings: Sequence[Finding]) -> Table:
    """The findings below the names of their areas."""
    lines, before = Table.of("what", "found", "what to do"), ""
    for finding in findings:
        if finding.area != before:
            lines.add_section()
            lines.add_row(finding.area, "", "", style="bold")
        name = finding.name.removesuffix("_bytes").removesuffix("_columns").replace("_", " ")  # the text says the unit
        lines.add_row(f"  {name}", finding.text, f"{_MARKS[finding.status]}{finding.remedy}",
                      style="red" if finding.status == BROKEN else "")
        before = finding.area
    return lines
