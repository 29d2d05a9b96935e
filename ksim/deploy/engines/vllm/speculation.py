"""`--speculative-config`: the drafter by its catalogue name, and an acceptance, which no line says."""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from ksim.deploy.flags.given import Given
from ksim.deploy.flags.json_tables import known_keys, table_of
from ksim.deploy.flags.meaning import Handler, Reading
from ksim.deploy.launches import Note
from ksim.foundation import catalog
from ksim.foundation.errors import ConfigError
from ksim.simulation.model_names import named
from ksim.specs.speculative import SpeculativeConfig

#: Keys of vLLM's that change nothing here.
_IDLE = ("draft_load_config", "disable_logprobs", "acceptance_method", "typical_acceptance_sampler_posterior_threshold",
         "typical_acceptance_sampler_posterior_alpha", "token_map", "trust_remote_code", "disable_by_batch_size",
         "rejection_sampler", "enable_multi_layers_mtp")
#: What is assumed of drafts: chances that a token is accepted if those before it are.
ACCEPTANCE = 0.7
_MADE_UP = (f"MADE UP: no line says how many drafted tokens are accepted; {ACCEPTANCE:g} each stands for it.  Set"
            " serve.speculative_config.acceptance to what your engine's log prints (docs/speculation.md)")


def _config(reading: Reading, given: Given) -> None:
    table = known_keys(given, table_of(given), SpeculativeConfig, _IDLE)
    _add(reading, given, table)


def _add(reading: Reading, given: Given, table: Mapping[str, Any]) -> None:
    if not table:
        return
    config = {**reading.serve.get("speculative_config", {}), **table}
    if "model" in table and table["model"] not in ("ngram", "[ngram]"):
        config["model"] = drafter(str(table["model"]), given)
    reading.serve["speculative_config"] = config


def _part(key: str, reading: Reading, given: Given) -> None:
    """One of `--spec-method`, `--spec-model` and `--spec-tokens`."""
    _add(reading, given, {key: given.value})


def drafter(text: str, given: Given) -> str:
    """The drafter that *text* names: a head of `ksim list drafters`, or a model; raises ConfigError for others."""
    heads = _heads()
    stem = text.rpartition("/")[2].lower()
    if stem in heads:
        return heads[stem]
    if catalog.is_file(text):
        return text
    try:
        return named(text, given.where, remedy="a path in its place, such as").name
    except ConfigError:
        known = ", ".join(catalog.entries("drafters"))
        raise ConfigError(given.where, f"{given.flag.name}: no drafter of the catalogue is {text!r}; it has {known};"
                                       f" name the config.json of yours") from None


@cache
def _heads() -> Mapping[str, str]:
    heads = {name: catalog.load("drafters", name) for name in catalog.entries("drafters")}
    return {**{name: name for name in heads},
            **{str(head.get("_name_or_path", name)).rpartition("/")[2].lower(): name for name, head in heads.items()}}


def with_acceptance(reading: Reading, where: str) -> None:
    """Fill in an acceptance where speculation has none."""
    config = reading.serve.get("speculative_config")
    if config and not config.keys() & {"acceptance", "synthetic_acceptance_rates", "synthetic_acceptance_length"}:
        config["acceptance"] = {"name": "geometric", "rate": ACCEPTANCE}
        reading.remarks.append(Note(where, "acceptance", _MADE_UP))


HANDLERS: Mapping[str, Handler] = {
    "speculative_config": _config, "spec_method": partial(_part, "method"), "spec_model": partial(_part, "model"),
    "spec_tokens": partial(_part, "num_speculative_tokens")}
