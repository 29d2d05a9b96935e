"""`ksim new`: a scenario to start from."""

import sys
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from ksim.cli import files
from ksim.cli.output import say


def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="scenario file to write")] = Path("scenario.toml"),
    template: Annotated[str, typer.Option("--template", "-t", metavar="NAME", help="the service that it is about, such"
                                          " as chat, rag, agents, reasoning, batch, fleet or pd; see `ksim list"
                                          " templates`")] = "chat",
    model: Annotated[str, typer.Option(help="catalogue name or path of a Hugging Face config.json")] = "llama-3.1-8b",
    gpu: Annotated[str, typer.Option(help="GPU, in its usual system")] = "h200",
    tp: Annotated[int | None, typer.Option("--tensor-parallel-size", "--tp", min=1, help="GPUs that share each layer;"
                                           " by default the fewest on which the model fits")] = None,
    force: Annotated[bool, typer.Option("--force", help="overwrite the file")] = False,
) -> None:
    """Write a commented scenario that runs as it is, with every key, its meaning and its default."""
    from ksim.simulation.scenario_template import starter

    files.check_scenario(path, force)
    files.write(path, starter(model, gpu, tp, path.parent, template))
    say(f"wrote {path}; now: ksim run {path}")


@wraps(new)
def init(**values: Any) -> None:
    print("ksim: `ksim init` is called `ksim new` now; the old name goes with the next release", file=sys.stderr)
    new(**values)
