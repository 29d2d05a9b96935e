"""What is assumed about measured runs: the content of ksim/data/recipes/silicon.toml."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from attrs import field, frozen

from ksim.foundation import catalog
from ksim.foundation.errors import KsimError
from ksim.validation.silicon.rows import Row

__all__ = ["Acceptance", "Backend", "NotRun", "Recipes", "Rule", "Source", "recipes"]


class NotRun(KsimError):
    """Why a row has no scenario; rows with the same reason have the same text."""


@frozen
class Backend:
    """How an engine is simulated: a release, a host, and the settings that differ from vLLM's defaults."""

    engine: str
    host: str
    serve: Mapping[str, Any] = field(factory=dict)


@frozen
class Source:
    """The load of the runs from one source.

    Lengths are uniform between two shares of the nominal length.  A run sends `waves` times its concurrency of prompts,
    and starts with as many at once as its concurrency allows.  Its latencies are the `statistic` over requests.
    """

    prompt: tuple[float, float]
    output: tuple[float, float]
    waves: int
    statistic: str
    text: str


@frozen
class Rule:
    """Settings of the rows whose fields have one of the values in `when`; the data file lists fields and values.

    `queued` requests are in flight beyond the concurrency that a row states.  `output` replaces the shares of the
    source.
    """

    when: Mapping[str, tuple[str, ...]]
    serve: Mapping[str, Any]
    text: str
    queued: int = 0
    output: tuple[float, float] | None = None


@frozen
class Acceptance:
    """The chance that a draft of a model and all before it are accepted, place by place, in all of the model's runs."""

    rates: tuple[float, ...]
    text: str


@frozen
class Recipes:
    """What is assumed about measured runs; the data file says where each assumption comes from."""

    models: Mapping[str, str]
    gpus: Mapping[str, str]
    quantizations: Mapping[str, str]
    backends: Mapping[str, Backend]
    sources: Mapping[str, Source]
    rules: tuple[Rule, ...]
    acceptances: Mapping[str, Acceptance]

    def model(self, row: Row) -> str:
        """The catalogue's name of the row's checkpoint; where no pattern matches, the last part of its path."""
        path = row.model_path.lower()
        return next((name for pattern, name in self.models.items() if re.search(pattern, path)),
                    path.rpartition("/")[2])

    def source(self, row: Row) -> tuple[str, Source]:
        """The row's source and its name; raises NotRun for an unknown source."""
        for name, source in self.sources.items():
            if row.source.startswith(name):
                return name, source
        raise NotRun(f"source {row.source!r} has no known load")


@cache
def recipes() -> Recipes:
    return catalog.value(Recipes, "recipes", "silicon")
