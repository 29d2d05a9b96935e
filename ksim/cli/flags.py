"""Flags that several commands share, those named as by `vllm serve` among them.

Where the command line writes: tables and text on the screen, and JSON (docs/cli.md).

Every command that prints a table takes `--json FILE` and `--wide`.  After `--json -`, standard output has the JSON
alone: tables are not printed, and what else is said goes to standard error.
"""

import inspect
import json
import os
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, get_args, get_origin

import attrs
import typer
from rich.console import Console
from rich.text import Text

from ksim.cli.terminal import moves, width
from ksim.foundation.config import Choice, plain
from ksim.foundation.errors import ConfigError
from ksim.foundation.keys import Key, keys
from ksim.specs.settings import EngineSettings
from ksim.views.tables import REMEDY, WIDE
from ksim.views.wording import UNLIMITED

if TYPE_CHECKING:
    from ksim.flow.batch import Batch
    from ksim.scenario.scenario import Scenario


#: The file name that stands for standard output.
STDOUT = Path("-")
#: Standard output itself, while it is kept for JSON.
_KEPT: ContextVar[TextIO | None] = ContextVar("standard output", default=None)


@contextmanager
def _kept_for_json() -> Iterator[None]:
    """Keep standard output for JSON: what is printed meanwhile goes to standard error."""
    token = _KEPT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _KEPT.reset(token)


def _claim(context: typer.Context, path: Path | None) -> Path | None:
    """Refuse a folder before anything is run, and keep standard output for JSON if it goes there."""
    if path is not None and not context.resilient_parsing:
        if path == STDOUT:
            context.with_resource(_kept_for_json())
        elif path.is_dir():
            raise ConfigError("--json", f"{path}: cannot be written: it is a directory; name a file in it, or - for"
                                        f" standard output")
    return path


def _check(context: typer.Context, path: Path | None) -> Path | None:
    """Do as `_claim`, and refuse a file in a folder that there is not, or that nobody may write to."""
    path = _claim(context, path)
    if path is not None and not context.resilient_parsing and path != STDOUT:
        folder = path.resolve().parent
        problem = "No such file or directory" if not folder.is_dir() else (
            "" if os.access(folder, os.W_OK) else "Permission denied")
        if problem:
            raise ConfigError("--json", f"{path}: cannot be written: {problem}; name a file in a directory that may be"
                                        f" written to, or - for standard output")
    return path


def _option(check: Callable[[typer.Context, Path | None], Path | None]) -> Any:
    return typer.Option("--json", metavar="FILE", callback=check, help="write the outcome as JSON to this file, or to"
                                                                       " standard output for - (docs/cli.md)")


#: The option that every command with a table has.
JsonFile = Annotated[Path | None, _option(_check)]
#: The same for commands that make the file's folder.
JsonInFolder = Annotated[Path | None, _option(_claim)]


@contextmanager
def _showing(wide: bool, remedy: str) -> Iterator[None]:
    """Show all columns where that is asked for, else say below tables that lack some which options do."""
    tokens = WIDE.set(wide), REMEDY.set(remedy)
    try:
        yield
    finally:
        WIDE.reset(tokens[0])
        REMEDY.reset(tokens[1])


def _widen(context: typer.Context, wide: bool) -> bool:
    if not context.resilient_parsing:
        known = {name for option in context.command.params for name in option.opts}
        context.with_resource(_showing(wide, ", ".join(name for name in ("--wide", "--json") if name in known)))
    return wide


#: The other option that every command with a table has.
Wide = Annotated[bool, typer.Option("--wide", callback=_widen, help="print all columns of tables, also those for which"
                                                                    " the terminal has no room")]


def console() -> Console:
    """Standard output: as wide as the terminal, or without a limit where there is none."""
    return Console(width=_width(), quiet=_KEPT.get() is not None)


def report_console() -> Console:
    """Standard output for reports, whose texts are as narrow as a page where there is no terminal."""
    return Console(width=UNLIMITED if WIDE.get() else None, quiet=_KEPT.get() is not None)


def say(*lines: str) -> None:
    """Print *lines*, folded at words where the terminal ends; after `--json -`, on standard error."""
    screen = Console(width=_width())
    for line in lines:
        screen.print(Text(line))


def _width() -> int | None:
    return UNLIMITED if WIDE.get() else width(sys.stdout)


class _Silent:
    """A status line where nobody looks."""

    def update(self, status: str) -> None:
        """Show nothing."""


@contextmanager
def status(text: str) -> Iterator[Any]:
    """A line on standard error that says what is being done, with an `update`; nothing where there is no terminal."""
    shown = Console(stderr=True).status(text) if moves(sys.stderr) else nullcontext(_Silent())
    with shown as line:
        yield line


def as_json(content: Mapping[str, Any]) -> str:
    """*content* as JSON, which has no NaN and no infinity: they are null."""
    return json.dumps(_plain(content), indent=2, allow_nan=False) + "\n"


def write_json(path: Path | None, content: Mapping[str, Any], *, make_folder: bool = False) -> None:
    """Write *content* to *path*, if one is given; raises ConfigError where that is not possible."""
    if path is None:
        return
    if path == STDOUT:
        (_KEPT.get() or sys.stdout).write(as_json(content))
        return
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_json(content), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--json", f"{path}: cannot be written: {error.strerror or error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    return value.tolist() if type(value).__module__ == "numpy" else value


#: What is simulated.
ModelName = Annotated[str, typer.Option(help="catalogue name, Hugging Face config.json, or a folder with one")]
GpuName = Annotated[str | None, typer.Option(help="GPU, in its usual system")]
SystemName = Annotated[str | None, typer.Option(help="system, in place of a GPU")]
Nodes = Annotated[int | None, typer.Option(help="number of nodes of the system")]
OracleName = Annotated[str | None, typer.Option(help="latency oracle; package.module:Class for your own, FILE.npz for a"
                                                " profile; by default measured where one ships, else learned")]

#: The headings of options about traces, and about what is written.
TRACE_PANEL, OUTPUT_PANEL = "How the trace is read", "What is written"
Format = Annotated[str, typer.Option("--format", rich_help_panel=TRACE_PANEL, help="format of the trace, if it is not"
                                     " recognised; see `ksim list traces`")]
Columns = Annotated[list[str] | None, typer.Option("--columns", metavar="FIELD=COLUMN,...", rich_help_panel=TRACE_PANEL,
                                                   help="which column of a CSV file, or key of JSON lines, is the"
                                                   " arrival, prompt, output, priority, session, delay, tenant,"
                                                   " adapter, acceptance, hash_ids or images")]
TimeUnit = Annotated[str | None, typer.Option("--time-unit", metavar="UNIT", rich_help_panel=TRACE_PANEL, help="unit of"
                                              " the trace's times: ns, us, ms, s, min or h, if not that of its format,"
                                              " or of the column's name")]
ChunkTokens = Annotated[int | None, typer.Option(rich_help_panel=TRACE_PANEL, help="tokens per block id, if not those"
                                                 " of its format")]
Sort = Annotated[bool, typer.Option("--sort", rich_help_panel=TRACE_PANEL, help="read a trace that is out of order into"
                                    " memory, and sort it")]
SkipEmpty = Annotated[bool, typer.Option("--skip-empty", rich_help_panel=TRACE_PANEL, help="skip rows without prompt or"
                                         " output tokens, which are an error in most formats")]

#: Short names that vLLM has, by the long name of the field.
_SHORT = {"tensor_parallel_size": ["--tp", "-tp"], "pipeline_parallel_size": ["--pp", "-pp"],
          "data_parallel_size": ["--dp", "-dp"], "quantization": ["-q"]}
#: The heading of engine settings in the help.
SERVE_PANEL = "Engine settings, named as by vllm serve"


#: Engine settings that say which steps there are, and what stays cached, but not what a step costs, or what fits.
OF_RUNS = frozenset({
    "scheduling_policy", "admission", "enable_prefix_caching", "eviction", "max_logprobs", "max_num_active_seqs",
    "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive", "prefill_schedule_interval", "watermark",
    "scheduler_reserve_full_isl", "async_scheduling", "kv_transfer_config", "kv_offloading_size",
    "kv_offloading_backend", "max_cpu_loras", "lora_modules", "eplb_window_size", "eplb_step_interval", "sglang"})


def with_serve_flags(command: Callable[..., None], hidden: Collection[str] = ()) -> Callable[..., None]:
    """Give *command* a flag for each engine setting; those that are set reach it as its last argument, `serve`.

    Its help does not list the *hidden* ones, which it takes all the same: a launch line may be pasted whole.
    """
    own = inspect.signature(command)
    flags = [_flag(key, key.name in hidden) for key in keys(EngineSettings)]

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
        example = tomllib.loads(f"x = {key.labels['Example']}")["x"]
        shown = json.dumps(example[0] if isinstance(example, list) else example)
        raise ConfigError(flag, f"expected a JSON object such as '{shown}', not {text}")
    return value


def _has_tables(key: Key) -> bool:
    """Return whether the value of *key* is a list of tables."""
    return get_origin(key.kind) is tuple and attrs.has(get_args(key.kind)[0])


def _is_table(key: Key) -> bool:
    return get_origin(key.kind) is Mapping or (attrs.has(key.kind) and key.kind is not Choice)


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
    from ksim.workload.rows import check_fields

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
    from ksim.scenario.scenario import ANY_WORKLOAD, Scenario

    if "kv_transfer_config" in (flags["serve"] or {}):
        raise ConfigError("--kv-transfer-config", f"`ksim {where}` is about one engine, which sends KV to no other;"
                                                  f" leave it out")
    table = {**flags, "oracle": oracle_of(flags["oracle"]), "serve": flags["serve"] or {}, "workload": ANY_WORKLOAD}
    return Scenario.of(given(table), where)


def with_step_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Do as `with_serve_flags` for a *command* about single steps, whose help lists what matters to these."""
    return with_serve_flags(command, OF_RUNS)


def _flag(key: Key, hidden: bool) -> inspect.Parameter:
    """A keyword parameter that typer turns into an option; None means that the flag is not given."""
    text = attrs.has(key.kind) or _is_table(key)
    kind = str if text else _listed(key.kind) if get_origin(key.kind) is tuple else key.kind
    name = "--" + key.name.replace("_", "-")
    names = [f"{name}/--no-{name[2:]}"] if kind is bool else [name, *_SHORT.get(key.name, [])]
    option = typer.Option(*names, help=_help(key), show_default=False, hidden=hidden,
                          rich_help_panel=SERVE_PANEL)
    return inspect.Parameter(key.name, inspect.Parameter.KEYWORD_ONLY, default=None,
                             annotation=Annotated[kind | None, option])


def _listed(kind: Any) -> Any:
    of = get_args(kind)[0]
    return list[str if attrs.has(of) else of]  # type: ignore[misc]


def _help(key: Key) -> str:
    default = plain(key.default)
    shown = str(default).lower() if isinstance(default, bool) else default
    said = default is None or "Default" in key.labels
    return key.described if said else f"{key.described} Default: {shown}."
