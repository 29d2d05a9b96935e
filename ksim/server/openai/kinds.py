"""Types of fields, with pydantic's error messages for values of other types; and the model that is served.

A kind is called with a value, its place in the request and a list of problems, to which it may add some.  It returns
the value as vLLM reads it: an integer may be written "16" or 16.0.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import inf
from typing import Any

from attrs import frozen

from ksim import __version__
from ksim.features.images import vision_of
from ksim.foundation.errors import ConfigError, KsimError
from ksim.scenario.models import named
from ksim.server.errors import invalid, not_found
from ksim.simulation.fleet import Fleet

__all__ = ["Kind", "Problem", "flag", "integer", "items", "literal", "needing", "number", "optional", "record", "table",
           "text", "ServedModel", "problem", "either"]


Problem = dict[str, Any]
Kind = Callable[[Any, str, list[Problem]], Any]

_YES, _NO = {"true", "1", "yes", "on", "t", "y"}, {"false", "0", "no", "off", "f", "n"}


def problem(kind: str, place: str, message: str, value: Any, **context: Any) -> Problem:
    """A problem as pydantic describes it; long values are shortened."""
    told = {"type": kind, "loc": place, "msg": message, "input": _shown(value)}
    return told | ({"ctx": context} if context else {})


def _shown(value: Any) -> str:
    """At most 200 characters of *value*; lists and tables are counted."""
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    shown = str(value)
    return shown if len(shown) <= 200 else shown[:200] + "...[truncated]"


def integer(least: int | None = None, most: int | None = None) -> Kind:
    """A whole number from *least* to *most*."""
    def read(value: Any, place: str, problems: list[Problem]) -> Any:
        whole = _whole(value, place, problems)
        if whole is not None and least is not None and whole < least:
            problems.append(problem("greater_than_equal", place, f"Input should be greater than or equal to {least}",
                                    value, ge=least))
        if whole is not None and most is not None and whole > most:
            problems.append(problem("less_than_equal", place, f"Input should be less than or equal to {most}", value,
                                    le=most))
        return whole
    return read


def _whole(value: Any, place: str, problems: list[Problem]) -> int | None:
    message, kind = "Input should be a valid integer", "int_type"
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        kind, message = "int_from_float", f"{message}, got a number with a fractional part"
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            kind, message = "int_parsing", f"{message}, unable to parse string as an integer"
    problems.append(problem(kind, place, message, value))
    return None


def number(value: Any, place: str, problems: list[Problem]) -> Any:
    """Any number; those beyond the range of floats are infinite."""
    message, kind = "Input should be a valid number", "float_type"
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return inf if value > 0 else -inf
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            kind, message = "float_parsing", f"{message}, unable to parse string as a number"
    problems.append(problem(kind, place, message, value))
    return None


def flag(value: Any, place: str, problems: list[Problem]) -> Any:
    """A boolean, or a word that pydantic reads as one."""
    if isinstance(value, bool):
        return value
    word = str(int(value)) if isinstance(value, int | float) and value in (0, 1) else str(value).lower()
    if isinstance(value, int | float | str):
        if word in _YES | _NO:
            return word in _YES
        kind, message = "bool_parsing", "Input should be a valid boolean, unable to interpret input"
    else:
        kind, message = "bool_type", "Input should be a valid boolean"
    problems.append(problem(kind, place, message, value))
    return None


def text(value: Any, place: str, problems: list[Problem]) -> Any:
    """A text."""
    if not isinstance(value, str):
        problems.append(problem("string_type", place, "Input should be a valid string", value))
    return value


def table(value: Any, place: str, problems: list[Problem]) -> Any:
    """An object with any content."""
    if not isinstance(value, dict):
        problems.append(problem("dict_type", place, "Input should be a valid dictionary", value))
    return value


def record(name: str, **kinds: Kind) -> Kind:
    """An object with fields of these kinds, and others."""
    def read(value: Any, place: str, problems: list[Problem]) -> Any:
        if not isinstance(value, dict):
            message = f"Input should be a valid dictionary or instance of {name}"
            problems.append(problem("model_type", place, message, value, class_name=name))
            return value
        return value | {key: kind(value[key], f"{place}.{key}", problems) for key, kind in kinds.items()
                        if key in value}
    return read


def needing(key: str) -> Kind:
    """An object that has this *key*."""
    def read(value: Any, place: str, problems: list[Problem]) -> Any:
        if isinstance(table(value, place, problems), dict) and key not in value:
            problems.append(problem("missing", f"{place}.{key}", "Field required", value))
        return value
    return read


def items(of: Kind, most: int | None = None) -> Kind:
    """A list of these, with at most so many."""
    def read(value: Any, place: str, problems: list[Problem]) -> Any:
        if not isinstance(value, list):
            problems.append(problem("list_type", place, "Input should be a valid list", value))
            return value
        if most is not None and len(value) > most:
            message = f"List should have at most {most} items after validation, not {len(value)}"
            problems.append(problem("too_long", place, message, value, field_type="List", max_length=most,
                                    actual_length=len(value)))
            return value
        return [of(item, f"{place}.{number}", problems) for number, item in enumerate(value)]
    return read


def literal(*words: str) -> Kind:
    """One of these words."""
    quoted = [f"'{word}'" for word in words]
    expected = f"{', '.join(quoted[:-1])} or {quoted[-1]}" if len(quoted) > 1 else quoted[0]

    def read(value: Any, place: str, problems: list[Problem]) -> Any:
        if value not in words:
            problems.append(problem("literal_error", place, f"Input should be {expected}", value, expected=expected))
        return value
    return read


def optional(kind: Kind) -> Kind:
    """The same, or null."""
    def read(value: Any, place: str, problems: list[Problem]) -> Any:
        return None if value is None else kind(value, place, problems)
    return read


def either(kinds: Sequence[Kind]) -> Kind:
    """One of several kinds; a value of none of them gets the problems of all."""
    def read(value: Any, place: str, problems: list[Problem]) -> Any:
        complaints = list[Problem]()
        for kind in kinds:
            own = list[Problem]()
            taken = kind(value, place, own)
            if not own:
                return taken
            complaints += own
        problems += complaints
        return value
    return read


@frozen
class ServedModel:
    """A fleet as clients know it.

    It answers to its `names`, with the first of them, and to its `adapters`.  A request may ask for `max_logprobs`
    likeliest tokens at a place, or for any number if that is -1.  Fleets of several pools have the smallest limits.
    """

    names: Sequence[str]
    adapters: Sequence[str]
    root: str
    max_model_len: int
    vocabulary: int
    max_logprobs: int
    takes_images: bool
    release: str
    fingerprint: str
    created: int = 0

    @classmethod
    def of(cls, fleet: Fleet, names: Iterable[str] = (), created: int = 0) -> "ServedModel":
        """What *fleet* serves, under its own name where it is given no *names*.

        Raises ConfigError for a fleet of several models, before which there is one server of each.
        """
        if len(fleet.models) > 1:
            raise ConfigError("pools", f"serve {', '.join(fleet.models)}, and a server has one model; serve the"
                                       " pools of each by a scenario of their own")
        scenario, serves = fleet.scenario, [deployment.serve for deployment in fleet.deployments]
        first = fleet.deployments[0]
        adapters = dict.fromkeys(name for serve in serves for module in serve.lora_modules for name in module.names)
        digest = blake2b(scenario.to_toml().encode(), digest_size=4).hexdigest()
        return cls(
            names=tuple(names) or (first.model.name,), adapters=tuple(adapters), root=fleet.pools[0].model,
            max_model_len=min(serve.max_model_len or 1 for serve in serves),
            vocabulary=int(first.model.decoder.sizes["V"]), max_logprobs=min(serve.max_logprobs for serve in serves),
            takes_images=vision_of(first.model, first.serve) is not None, release=first.version.name,
            fingerprint=f"ksim-{__version__}-{digest}", created=created)

    @property
    def sglang(self) -> bool:
        """Whether its engine is SGLang."""
        return self.release.startswith("SGLang")

    @property
    def version(self) -> str:
        """The version of the engine release that is simulated, and ksim's."""
        return f"{self.release.rpartition(' ')[2]}+ksim.{__version__}"

    def model(self, asked: str | None) -> tuple[str, str]:
        """The name that is answered to one who has *asked* for a model, and the adapter that it is, or "".

        Raises ApiError for a model that is not served.
        """
        if not asked or asked in self.names:
            return self.names[0], ""
        if asked in self.adapters:
            return asked, asked
        if self.root == self.names[0] and _catalogue_name(asked) == self.root:
            return self.root, ""
        raise not_found(asked, ", ".join(self.names))

    def check_images(self) -> None:
        """Raise ApiError where the model takes no images."""
        if not self.takes_images:
            raise invalid("At most 0 image(s) may be provided in one prompt.", "image")

    @property
    def cards(self) -> dict[str, Any]:
        """The models, as `/v1/models` lists them."""
        models = [self._card(name, self.root, None) for name in self.names]
        return {"object": "list", "data": models + [self._card(name, name, self.names[0]) for name in self.adapters]}

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        allowed = {key: key in ("sampling", "logprobs", "view")
                   for key in ("create_engine", "sampling", "logprobs", "search_indices", "view", "fine_tuning")}
        permission = {
            "id": f"modelperm-{blake2b(name.encode(), digest_size=8).hexdigest()}", "object": "model_permission",
            "created": self.created, **{f"allow_{key}": value for key, value in allowed.items()}, "organization": "*",
            "group": None, "is_blocking": False}
        return {"id": name, "object": "model", "created": self.created,
                "owned_by": "sglang" if self.sglang else "vllm", "root": root, "parent": parent,
                "max_model_len": None if parent else self.max_model_len, "permission": [permission]}


@lru_cache(256)
def _catalogue_name(text: str) -> str:
    """The catalogue's name of a model of Hugging Face, as clients of vLLM call it; empty for others."""
    try:
        return named(text, "").name if text.count("/") == 1 and len(text) < 200 else ""
    except KsimError:
        return ""
