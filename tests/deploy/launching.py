"""Launch lines for tests: to what they start, and to the scenario that is printed."""

import tomllib
from pathlib import Path

from ksim.deploy.commands import ImportOptions, ShellCommand, launch_of
from ksim.deploy.importing import scenario_text
from ksim.deploy.texts import Pasted
from ksim.scenario.scenario import Scenario


def launched(*words, **wanted):
    """What the command of *words* starts."""
    return launch_of(ShellCommand.of(words, "line 1"), ImportOptions(**wanted))


def served(*flags, model="Qwen/Qwen3-8B"):
    """The settings that `vllm serve` gets from *flags*."""
    return dict(launched("vllm", "serve", model, *flags).serve)


def text_of(*texts, folder=Path(), **wanted):
    """What `ksim import` prints for *texts*."""
    return scenario_text([Pasted(text, folder=folder) for text in texts], ImportOptions(**{"gpu": "h200", **wanted}))


def table_of(*texts, **wanted):
    """The same as a table, which makes a scenario."""
    table = tomllib.loads(text_of(*texts, **wanted))
    Scenario.of(table)
    return table
