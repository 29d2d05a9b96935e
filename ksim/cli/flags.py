"""Flags as `vllm serve` names them, made from the fields of the engine's settings."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import typer

from ksim.foundation.config import Choice, plain
from ksim.foundation.keys import Key, keys
from ksim.specs.deployment import EngineSettings

#: Short names that vLLM has, and the field's long one.
_SHORT = {"tensor_parallel_size": ["--tp", "-tp"], "pipeline_parallel_size": ["--pp", "-pp"],
          "data_parallel_size": ["--dp", "-dp"], "quantization": ["-q"]}
_PANEL = "Engine settings, named as by vllm serve"


def with_serve_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* a flag for each engine setting; those set reach it as its last argument, `serve`."""
    own = inspect.signature(command)
    flags = [_flag(key) for key in keys(EngineSettings)]

    def wrapped(**values: Any) -> None:
        serve = {flag.name: values.pop(flag.name) for flag in flags}
        command(**values, serve=given(serve))

    parameters = [p for p in own.parameters.values() if p.name != "serve"]
    wrapped.__signature__ = own.replace(parameters=[*parameters, *flags])  # type: ignore[attr-defined]
    wrapped.__doc__ = command.__doc__
    return wrapped


def given(table: dict[str, Any]) -> dict[str, Any]:
    """*table* without the values that no flag has set."""
    return {key: value for key, value in table.items() if value is not None and value != []}


def oracle_of(name: str | None) -> Any:
    """What a scenario says of the oracle called *name*, which may be the path of a profile."""
    return {"name": "measured", "path": name} if name and name.endswith(".npz") else name


def _flag(key: Key) -> inspect.Parameter:
    """A keyword parameter that typer turns into an option; None means not given."""
    kind = str if key.kind is Choice else _listed(key.kind) if get_origin(key.kind) is tuple else key.kind
    name = "--" + key.name.replace("_", "-")
    names = [f"{name}/--no-{name[2:]}"] if kind is bool else [name, *_SHORT.get(key.name, [])]
    option = typer.Option(*names, help=_help(key), show_default=False, rich_help_panel=_PANEL)
    return inspect.Parameter(key.name, inspect.Parameter.KEYWORD_ONLY, default=None,
                             annotation=Annotated[kind | None, option])


def _listed(kind: Any) -> Any:
    return list[get_args(kind)[0]]  # type: ignore[misc]


def _help(key: Key) -> str:
    default = plain(key.default)
    shown = str(default).lower() if isinstance(default, bool) else default
    return key.described if default is None else f"{key.described} Default: {shown}."
