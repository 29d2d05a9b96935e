"""Flags that several commands share, those named as by `vllm serve` among them."""

import inspect
import json
import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import attrs
import typer

from ksim.cli.output import JsonFile
from ksim.foundation.config import Choice, plain
from ksim.foundation.errors import ConfigError
from ksim.foundation.keys import Key, keys
from ksim.foundation.outside import TRUST
from ksim.specs.settings import EngineSettings

if TYPE_CHECKING:
    from ksim.flow.batch import Batch
    from ksim.simulation.scenario import Scenario

#: What is simulated.
ModelName = Annotated[str, typer.Option(help="catalogue name, Hugging Face config.json, or a folder with one")]
GpuName = Annotated[str | None, typer.Option(help="GPU, in its usual system")]
SystemName = Annotated[str | None, typer.Option(help="system, in place of a GPU")]
Nodes = Annotated[int | None, typer.Option(help="number of nodes of the system")]
OracleName = Annotated[str | None, typer.Option(help="latency oracle; package.module:Class for your own, FILE.npz for a"
                                                " profile; by default measured where one ships, else learned")]

#: How a trace is read.
Format = Annotated[str, typer.Option("--format", help="format of the trace, if it is not recognised; see `ksim list"
                                     " traces`")]
Columns = Annotated[list[str] | None, typer.Option("--columns", metavar="FIELD=COLUMN,...", help="which column of a CSV"
                                                   " file, or key of JSON lines, is the arrival, prompt, output,"
                                                   " priority, session, delay, tenant, adapter, acceptance,"
                                                   " hash_ids or images")]
TimeUnit = Annotated[str | None, typer.Option("--time-unit", metavar="UNIT", help="unit of the trace's times: ns, us,"
                                              " ms, s, min or h, if not that of its format, or of the column's"
                                              " name")]
ChunkTokens = Annotated[int | None, typer.Option(help="tokens per block id, if not those of its format")]
Sort = Annotated[bool, typer.Option("--sort", help="read a trace that is out of order into memory, and sort it")]
SkipEmpty = Annotated[bool, typer.Option("--skip-empty", help="skip rows without prompt or output tokens, which are an"
                                         " error in most formats")]

#: Where results go.
OutcomeFile = JsonFile

#: Short names that vLLM has, by the long name of the field.
_SHORT = {"tensor_parallel_size": ["--tp", "-tp"], "pipeline_parallel_size": ["--pp", "-pp"],
          "data_parallel_size": ["--dp", "-dp"], "quantization": ["-q"]}
#: The heading of engine settings in the help.
SERVE_PANEL = "Engine settings, named as by vllm serve"
#: What flags that take JSON may look like.
_EXAMPLES = {"--lora-modules": '{"name": "sql", "rank": 16}',
             "--kv-transfer-config": '{"kv_connector": "NixlConnector"}',
             "--speculative-config": '{"method": "mtp", "num_speculative_tokens": 1}'}


def with_trust(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* `--trust`, which all commands have that may import a plug-in."""
    own = inspect.signature(command)

    @wraps(command)
    def wrapped(trust: bool, **values: Any) -> Any:
        if trust:
            os.environ[TRUST] = "1"  # which processes of this one inherit
        return command(**values)

    option = typer.Option("--trust", help="import plug-ins (package.module:Class) also from installed packages, not"
                                          " only from your own folders")
    flag = inspect.Parameter("trust", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
    parameters = [*own.parameters.values(), flag]
    wrapped.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


def with_serve_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* a flag for each engine setting; those that are set reach it as its last argument, `serve`."""
    own = inspect.signature(command)
    flags = [_flag(key) for key in keys(EngineSettings)]

    def wrapped(**values: Any) -> None:
        serve = {flag.name: values.pop(flag.name) for flag in flags}
        command(**values, serve=given(serve | _tables(serve)))

    parameters = [p for p in own.parameters.values() if p.name != "serve"]
    wrapped.__signature__ = own.replace(parameters=[*parameters, *flags])  # type: ignore[attr-defined]
    wrapped.__doc__ = command.__doc__
    return wrapped


def _tables(serve: dict[str, Any]) -> dict[str, Any]:
    """The flags of *serve* that are tables, which are JSON on the command line; raises ConfigError for other text."""
    texts = [(key, serve[key.name]) for key in keys(EngineSettings)
             if (_is_table(key) or _has_tables(key)) and serve[key.name]]
    return {key.name: [_json(key, each) for each in text] if _has_tables(key) else _json(key, text)
            for key, text in texts}


def _json(key: Key, text: str) -> dict[str, Any]:
    flag = f"--{key.name.replace('_', '-')}"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(flag, f"is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(flag, f"expected a JSON object such as '{_EXAMPLES[flag]}', not {text}")
    return value


def _has_tables(key: Key) -> bool:
    """Whether its value is a list of tables."""
    return get_origin(key.kind) is tuple and attrs.has(get_args(key.kind)[0])


def _is_table(key: Key) -> bool:
    return attrs.has(key.kind) and key.kind is not Choice


def given(table: dict[str, Any]) -> dict[str, Any]:
    """*table* without the values that no flag has set."""
    return {key: value for key, value in table.items() if value is not None and value != []}


def words_of(text: str) -> list[str]:
    """The words of a list with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def columns_of(texts: list[str] | None) -> dict[str, str]:
    """The columns by field that ``--columns arrival=ts,prompt=tokens_in`` names.

    Raises ConfigError for an unknown field, and for text that is not FIELD=COLUMN.
    """
    from ksim.workload.columns import check_fields

    columns: dict[str, str] = {}
    for part in (part for text in texts or [] for part in text.split(",")):
        field, equals, column = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError("--columns", f"expected FIELD=COLUMN, such as arrival=ts, not {part!r}")
        if field in columns:
            raise ConfigError("--columns", f"names two columns for {field}, {columns[field]!r} and {column!r}")
        columns[field] = column
    try:
        check_fields(columns)
    except ValueError as error:
        raise ConfigError("--columns", str(error)) from None
    return columns


def oracle_of(name: str | None) -> Any:
    """The oracle called *name* as a scenario writes it; *name* may be the path of a profile."""
    return {"name": "measured", "path": name} if name and name.endswith(".npz") else name


def batch_of(decode: str, prefill: str) -> "Batch":
    """The batch that ``--decode`` and ``--prefill`` describe; raises ConfigError for text that describes none."""
    from ksim.flow.batch import Batch

    try:
        return Batch.parse(decode, prefill)
    except ValueError as error:
        raise ConfigError("--decode, --prefill", str(error)) from None


def with_adapters(batch: "Batch", text: str, serve: dict[str, Any]) -> "Batch":
    """*batch* with so many tokens of each LoRA adapter as ``--adapters`` says; raises ConfigError for what cannot be.
    """
    words = words_of(text)
    tokens = [int(word) for word in words if word.isdecimal() and int(word) > 0]
    if len(tokens) < len(words):
        raise ConfigError("--adapters", f"expected tokens of each adapter, such as 32,32, not {text!r}")
    most = serve.get("max_loras", 1) if serve.get("enable_lora") else 0
    if len(tokens) > most:
        raise ConfigError("--adapters", f"{len(tokens)} adapters are more than max_loras = {most} lets into a batch;"
                                        f" set --enable-lora and --max-loras")
    if sum(tokens) > batch.tokens:
        raise ConfigError("--adapters", f"{sum(tokens)} tokens of adapters are more than the {batch.tokens} of the"
                                        f" step")
    return attrs.evolve(batch, adapters=tuple(sorted(tokens, reverse=True)))


def scenario_of(where: str, **flags: Any) -> "Scenario":
    """A scenario without a workload of its own from the flags `model`, `gpu`, `system`, `oracle` and `serve`."""
    from ksim.simulation.scenario import ANY_WORKLOAD, Scenario

    if "kv_transfer_config" in (flags["serve"] or {}):
        raise ConfigError("--kv-transfer-config", f"`ksim {where}` is about one engine, which sends KV to no other;"
                                                  f" leave it out")
    table = {**flags, "oracle": oracle_of(flags["oracle"]), "serve": flags["serve"] or {}, "workload": ANY_WORKLOAD}
    return Scenario.of(given(table), where)


def _flag(key: Key) -> inspect.Parameter:
    """A keyword parameter that typer turns into an option; None means that the flag is not given."""
    kind = str if attrs.has(key.kind) else _listed(key.kind) if get_origin(key.kind) is tuple else key.kind
    name = "--" + key.name.replace("_", "-")
    names = [f"{name}/--no-{name[2:]}"] if kind is bool else [name, *_SHORT.get(key.name, [])]
    option = typer.Option(*names, help=_help(key), show_default=False, rich_help_panel=SERVE_PANEL)
    return inspect.Parameter(key.name, inspect.Parameter.KEYWORD_ONLY, default=None,
                             annotation=Annotated[kind | None, option])


def _listed(kind: Any) -> Any:
    of = get_args(kind)[0]
    return list[str if attrs.has(of) else of]  # type: ignore[misc]


def _help(key: Key) -> str:
    default = plain(key.default)
    shown = str(default).lower() if isinstance(default, bool) else default
    return key.described if default is None else f"{key.described} Default: {shown}."
