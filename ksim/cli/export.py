"""`ksim export`: the lines, manifest or Helm values that start what a scenario simulates."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ksim.cli import files
from ksim.cli.output import say
from ksim.foundation.errors import ConfigError


def export(
    scenario: Annotated[Path, typer.Argument(help="scenario file, the directory of a run, or a folder with the"
                                             " best.toml of `ksim capacity` or `ksim tune`")],
    to: Annotated[str, typer.Option("--to", help="what to write: vllm, kubernetes or llm-d")] = "vllm",
    derived: Annotated[bool, typer.Option("--derived", help="also write the settings that the engine would derive,"
                                          " such as max_num_seqs")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="file to write; by default it is printed")]
    = None,
    force: Annotated[bool, typer.Option("--force", help="overwrite files")] = False,
) -> None:
    """Write the launch line, Kubernetes manifest or llm-d values of a scenario."""
    from ksim.deploy.exporting import FOLDER, exported
    from ksim.foundation import catalog

    forms = [name.replace("_", "-") for name in catalog.names(FOLDER)]
    if to not in forms:
        raise ConfigError("--to", f"expected {', '.join(forms)}, not {to!r}")
    if output is not None and output.is_dir():
        raise ConfigError(str(output), "is a folder; name a file in it")
    texts = exported(_scenario_file(scenario), to.replace("-", "_"), derived)
    if output is None:
        sys.stdout.write("---\n".join(texts.values()))
        return
    named = {output.with_name(f"{output.stem}{ending}{output.suffix}"): text for ending, text in texts.items()}
    for file in named:
        files.check_new(file, force)
    for file, text in named.items():
        files.write(file, text)
        say(f"wrote {file}")


def _scenario_file(path: Path) -> Path:
    """The scenario of a folder that a command wrote."""
    for name in ("best.toml", "scenario.toml"):
        if path.is_dir() and (path / name).is_file():
            return path / name
    return path
