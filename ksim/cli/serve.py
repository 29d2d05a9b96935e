"""`ksim serve`: an OpenAI-compatible server whose latencies are the simulation's."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ksim.cli.pools import Pools
from ksim.cli.run import Force, Seed, Settings, changed
from ksim.foundation.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from ksim.server.serving import ServerSettings

_PANEL = "Options named as by vllm serve"

Output = Annotated[Path | None, typer.Option("-o", "--output", help="directory to write the run to, with its requests"
                                             " as a trace")]
Speed = Annotated[float, typer.Option(help="simulated seconds per second")]
MaxBodySize = Annotated[str, typer.Option(metavar="SIZE", help="longest request body, such as 64MiB")]
Host = Annotated[str, typer.Option(help="host name or address to listen at; 0.0.0.0 lets other machines in",
                                   rich_help_panel=_PANEL)]
Port = Annotated[int, typer.Option(min=0, max=65535, help="port; 0 is any free one", rich_help_panel=_PANEL)]
Uds = Annotated[Path | None, typer.Option(help="path of a Unix socket, in place of host and port",
                                          rich_help_panel=_PANEL)]
ServedModelName = Annotated[list[str] | None, typer.Option(help="name of the model for clients; may be repeated",
                                                           rich_help_panel=_PANEL)]
Tokenizer = Annotated[Path | None, typer.Option(help="tokenizer.json of Hugging Face, or its folder; without one"
                                                " a token is a piece of a word", rich_help_panel=_PANEL)]
ApiKey = Annotated[list[str] | None, typer.Option(help="key that clients must send; may be repeated; default:"
                                                  " VLLM_API_KEY", rich_help_panel=_PANEL)]
KvEventsConfig = Annotated[str, typer.Option(metavar="JSON", help="publish KV events, such as"
                                             " '{\"enable_kv_cache_events\": true}'", rich_help_panel=_PANEL)]
EnableLogRequests = Annotated[bool, typer.Option("--enable-log-requests", help="print a line for each request",
                                                 rich_help_panel=_PANEL)]
EnablePromptTokensDetails = Annotated[bool, typer.Option("--enable-prompt-tokens-details", help="report in usage how"
                                                         " many prompt tokens were cached", rich_help_panel=_PANEL)]


def serve(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML)")],
    speed: Speed = 1.0, settings: Settings = None, pool: Pools = None, seed: Seed = None,
    max_body_size: MaxBodySize = "64MiB", host: Host = "localhost", port: Port = 8000, uds: Uds = None,
    served_model_name: ServedModelName = None, tokenizer: Tokenizer = None, api_key: ApiKey = None,
    kv_events_config: KvEventsConfig = "", enable_log_requests: EnableLogRequests = False,
    enable_prompt_tokens_details: EnablePromptTokensDetails = False,
    output: Output = None, force: Force = False,
) -> None:
    """Answer clients of OpenAI's API in real time, with the latencies of a simulated fleet."""
    from ksim.scenario.scenario import Scenario
    from ksim.simulation.fleet import Fleet
    from ksim.views import run_directory

    chosen = changed(Scenario.read(scenario), settings, seed, pool)
    wanted = _wanted(
        address={"host": host, "port": port, "uds": uds}, kv_events=kv_events_config, speed=speed,
        served_model_name=served_model_name or (), tokenizer=tokenizer, api_key=api_key or (),
        max_body_size=_bytes(max_body_size), enable_log_requests=enable_log_requests,
        enable_prompt_tokens_details=enable_prompt_tokens_details)
    from ksim.server import recording, serving

    def make() -> Fleet:
        fleet = Fleet.of(chosen)
        fleet.check_memory()
        return fleet

    if output is None:
        serving.serve(make, wanted, _say)
        return
    with run_directory.claimed(output.resolve(), force=force), recording.recording(chosen, output) as recorded:
        serving.serve(make, wanted, _say, recorded)
    _say(f"written to {output}; ksim run {output / 'scenario.toml'} does the same again")


def _wanted(address: dict[str, Any], kv_events: str, speed: float, api_key: Any, **others: Any) -> "ServerSettings":
    """The settings of these options; raises MissingExtra without the libraries of the server."""
    try:
        from ksim.server.http.streams import Address
        from ksim.server.kv_events import KvEventsConfig as Config
        from ksim.server.serving import ServerSettings
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "ksim":
            raise
        raise MissingExtra("server", "ksim serve") from None
    if not 0 < speed < float("inf"):
        raise ConfigError("--speed", f"must be above 0, not {speed:g}")
    keys = api_key or [os.environ.get("VLLM_API_KEY", "")]
    return ServerSettings(Address(**address), speed, api_key=[key for key in keys if key],
                          kv_events=Config.of(kv_events) if kv_events else Config(), **others)


def _say(text: str) -> None:
    print(f"ksim: {text}", file=sys.stderr, flush=True)


def _bytes(text: str) -> int:
    """A size such as 64MiB in bytes; raises ConfigError for any other text."""
    from ksim.foundation.units import measured

    try:
        size = measured(text, "B")
    except ValueError as error:
        raise ConfigError("--max-body-size", str(error)) from None
    if not 1 <= size <= 2**40:
        raise ConfigError("--max-body-size", f"must be from 1 byte to 1 TiB, not {text}")
    return int(size)
