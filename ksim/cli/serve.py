"""`ksim serve`: an OpenAI-compatible server whose latencies are the simulation's."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ksim.cli.pools import Pools
from ksim.cli.run import Seed, Settings, changed
from ksim.foundation.errors import ConfigError, MissingExtra

_PANEL = "Options named as by vllm serve"


def serve(
    scenario: Annotated[Path, typer.Argument(help="scenario file (TOML)")],
    speed: Annotated[float, typer.Option(help="simulated seconds in a second")] = 1.0,
    settings: Settings = None, pool: Pools = None, seed: Seed = None,
    max_body_size: Annotated[str, typer.Option(metavar="SIZE", help="longest body of a request, such as 64MiB")] = (
        "64MiB"),
    host: Annotated[str, typer.Option(help="name or address at which clients come; 0.0.0.0 lets other machines in",
                                      rich_help_panel=_PANEL)] = "localhost",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0 is any free one", rich_help_panel=_PANEL)] = 8000,
    uds: Annotated[Path | None, typer.Option(help="path of a Unix socket, in place of host and port",
                                             rich_help_panel=_PANEL)] = None,
    served_model_name: Annotated[list[str] | None, typer.Option(help="name of the model for clients; may be repeated",
                                                                rich_help_panel=_PANEL)] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json of Hugging Face's, or its folder; without one"
                                                        " tokens are pieces of words",
                                                   rich_help_panel=_PANEL)] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="key that clients must send; may be repeated; default:"
                                                           " VLLM_API_KEY", rich_help_panel=_PANEL)] = None,
    kv_events_config: Annotated[str, typer.Option(metavar="JSON", help="publish KV events, such as"
                                                  ' \'{"enable_kv_cache_events": true}\'',
                                                  rich_help_panel=_PANEL)] = "",
    enable_log_requests: Annotated[bool, typer.Option("--enable-log-requests", help="print a line for each request",
                                                      rich_help_panel=_PANEL)] = False,
) -> None:
    """Answer clients of OpenAI's API in real time, with the latencies of a simulated fleet."""
    from ksim.simulation.fleet import Fleet
    from ksim.simulation.scenario import Scenario

    try:
        from ksim.server import serving
        from ksim.server.event_publisher import KvEventsConfig
        from ksim.server.sockets import Address
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "ksim":
            raise
        raise MissingExtra("server", "ksim serve") from None
    if not 0 < speed < float("inf"):
        raise ConfigError("--speed", f"must be above 0, not {speed:g}")
    keys = api_key or [os.environ.get("VLLM_API_KEY", "")]
    wanted = serving.ServerSettings(
        Address(host, port, uds), speed, served_model_name or (), tokenizer, [key for key in keys if key],
        _bytes(max_body_size), enable_log_requests,
        KvEventsConfig.of(kv_events_config) if kv_events_config else KvEventsConfig())
    chosen = changed(Scenario.read(scenario), settings, seed, pool)

    def make() -> Fleet:
        fleet = Fleet.of(chosen)
        fleet.check_memory()
        return fleet

    serving.serve(make, wanted, _say)


def _say(text: str) -> None:
    print(f"ksim: {text}", file=sys.stderr, flush=True)


def _bytes(text: str) -> int:
    """The bytes that *text* says, such as 64MiB; raises ConfigError for any other text."""
    from ksim.foundation.units import measured

    try:
        size = measured(text, "B")
    except ValueError as error:
        raise ConfigError("--max-body-size", str(error)) from None
    if not 1 <= size <= 2**40:
        raise ConfigError("--max-body-size", f"must be from 1 byte to 1 TiB, not {text}")
    return int(size)
