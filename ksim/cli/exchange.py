"""`ksim export`: the lines, manifest or Helm values that start what a scenario simulates.

`ksim import`: a scenario from the lines and manifests that start engines.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.flags import GpuName, Nodes, SystemName, say
from ksim.foundation import files
from ksim.foundation.errors import ConfigError

if TYPE_CHECKING:
    from ksim.deploy.texts import Pasted


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


Texts = Annotated[list[str] | None, typer.Argument(metavar="LINE|FILE...", help="the line that starts the engine, in"
                                                   " quotes; or files with such lines or manifests; - is standard"
                                                   " input")]


def import_(
    text: Texts = None, gpu: GpuName = None, system: SystemName = None, nodes: Nodes = None,
    version: Annotated[str | None, typer.Option(help="release of the engine, such as 0.33.0; by default that of the"
                                                " image, else the newest")] = None,
    model: Annotated[str | None, typer.Option(help="catalogue name, Hugging Face config.json, or a folder with one, in"
                                              " place of the model that the line names")] = None,
    role: Annotated[list[str] | None, typer.Option(help="what each engine does, in order: prefill, decode or both;"
                                                   " where the lines do not say")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="a variable that the lines use"
                                                  " and do not set; may be repeated")] = None,
    bench: Annotated[str | None, typer.Option(metavar="LINE|FILE", help="the line of `vllm bench serve` or"
                                              " sglang.bench_serving, for the workload")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="scenario file to write; by default it is"
                                                " printed")] = None,
    force: Annotated[bool, typer.Option("--force", help="overwrite the file")] = False,
) -> None:
    """Make a scenario of the line, script or manifest that starts your engines."""
    from ksim.deploy.commands import ImportOptions
    from ksim.deploy.importing import scenario_text

    wanted = ImportOptions(gpu, system, nodes, version, model, roles=tuple(role or ()),
                           environment=_variables(env or []), bench=bench)
    if output is not None:
        files.check_scenario(output, force)
    made = scenario_text([_pasted(words) for words in _texts(text or ["-"])], wanted, output)
    if output is None:
        sys.stdout.write(made)
        return
    files.write(output, made)
    say(f"wrote {output}; now: ksim run {output}")


def _variables(texts: list[str]) -> dict[str, str]:
    variables = {"HOME": str(Path.home()), "PWD": str(Path.cwd())}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError("--env", f"expected NAME=VALUE, such as TP=8, not {text!r}")
        variables[name] = value
    return variables


def _texts(words: list[str]) -> list[Any]:
    """Return the texts among the arguments; the words of a line without quotes are one text."""
    from ksim.deploy.texts import names_path

    def is_text(word: str) -> bool:
        # A folder may well be called as a word of a line is, such as vllm.
        return " " in word or word == "-" or (names_path(word) and not Path(word).is_dir())

    if len(words) > 1 and not any(map(is_text, words)):
        return [words]
    return [*words]


def _pasted(words: str | list[str]) -> "Pasted":
    import shlex

    from ksim.deploy.texts import Pasted, main_file, names_path

    if isinstance(words, list):
        return Pasted(shlex.join(words), folder=Path.cwd())
    if words == "-":
        return Pasted.of_bytes(sys.stdin.buffer.read(), "standard input", Path.cwd())
    if not names_path(words) and Path(words).suffix in (".sh", ".yaml", ".yml", ".txt", ".json") and " " not in words:
        raise ConfigError(words, "No such file")
    if names_path(words) and Path(words).is_dir():
        words = str(main_file(Path(words)))
    return Pasted.of_argument(words)
