"""`ksim step --speculative`: what a step with its drafts costs beside the plain one, and when speculation pays."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict

from ksim.cli.output import console
from ksim.foundation.errors import ConfigError
from ksim.report.tables import Table

if TYPE_CHECKING:
    from ksim.flow.batch import Batch
    from ksim.simulation.scenario import Scenario
    from ksim.study.speculation import Payoff

#: Short names of keys, as METHOD,k=3,acceptance=0.8 has them.
_SHORT = {"k": "num_speculative_tokens", "length": "synthetic_acceptance_length"}


def table_of(text: str) -> dict[str, Any]:
    """The speculative config that *text* says: JSON, as for ``--speculative-config``, or METHOD,KEY=VALUE,...

    The short form has k for num_speculative_tokens; acceptance is the rate of a geometric one, and length the mean
    tokens of a verification (vLLM's synthetic_acceptance_length).  Raises ConfigError for any other text.
    """
    if text.lstrip().startswith("{"):
        return _json(text)
    method, *pairs = (part.strip() for part in text.split(","))
    config: dict[str, Any] = {"method": method}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value:
            raise ConfigError("--speculative", f"expected JSON, or METHOD,KEY=VALUE such as mtp,k=3,acceptance=0.8, not"
                                               f" {pair!r}")
        config[_SHORT.get(key, key)] = _value(value)
    if not isinstance(rate := config.get("acceptance", {}), dict):
        config["acceptance"] = {"name": "geometric", "rate": rate}
    if "synthetic_acceptance_length" in config:
        config["rejection_sample_method"] = "synthetic"
    return config


def _json(text: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("--speculative", f"is not valid JSON: {error}") from None
    return value


def _value(text: str) -> Any:
    """A number or a truth value as such, anything else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def compare(scenario: "Scenario", batch: "Batch", plot: Path | None) -> dict[str, Any]:
    """Print what a step of *scenario* over *batch* costs with its drafts and without, and up to which batch it pays.

    Returns the same for a JSON file.
    """
    from ksim.study.speculation import compared, payoff

    if not batch.contexts:
        raise ConfigError("--speculative", "compares sequences that decode; name some with --decode")
    found, step = payoff(scenario, batch.contexts.total // len(batch.contexts)), compared(scenario, batch)
    screen = console()
    screen.print(f"the step {1e3 * step.seconds:.3f} ms: {1e3 * step.target:.3f} of the target,"
                 f" {1e3 * step.verification:.3f} of rejection sampling, {1e3 * step.draft:.3f} of the drafter;"
                 f" the same sequences without speculation {1e3 * step.plain:.3f} ms\n", highlight=False)
    screen.print(_curve(found))
    screen.print(f"{found.title}: {found.drafts} drafted tokens, {found.length:.2f} tokens a verification; "
                 f"{found.sentence}.\n", highlight=False)
    if plot is not None:
        _draw(found, plot)
        screen.print(f"drawn to {plot}\n", highlight=False)
    return {**found.table, "step": {**asdict(step), "seconds": step.seconds}}


def _curve(found: "Payoff") -> Any:
    shown = Table.of(">sequences", ">ms a token, plain", ">ms a token, speculative", ">speed-up",
                     title=f"After {found.context:,} tokens each")
    for batch, plain, fast in zip(found.batches, found.plain, found.speculative, strict=True):
        shown.add_row(f"{batch:,}", f"{1e3 * plain:.3f}", f"{1e3 * fast:.3f}", f"{plain / fast:.2f}")
    return shown


def _draw(found: "Payoff", path: Path) -> None:
    from ksim.report.plots.speculation import speculation_figure
    from ksim.report.plots.style import looks, write

    note = (f"{found.drafts} drafted tokens, {found.length:.2f} tokens a verification, {found.context:,} tokens of"
            f" context")
    said, curves = found.sentence.capitalize(), (found.batches, found.plain, found.speculative)
    try:
        with looks():
            write(speculation_figure(found.title, note, said, *curves, found.pays), path)
    except (OSError, ValueError) as error:
        raise ConfigError("--plot", f"{path}: cannot be written: {error}") from None
