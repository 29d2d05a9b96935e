"""`ksim step`: one step, priced kernel by kernel."""

from typing import Annotated, Any

import typer

from ksim.cli.flags import given, oracle_of, with_serve_flags


@with_serve_flags
def step(
    model: Annotated[str, typer.Option(help="catalogue name, Hugging Face config.json, or a folder with one")],
    gpu: Annotated[str | None, typer.Option(help="GPU, in its usual system")] = None,
    system: Annotated[str | None, typer.Option(help="system, in place of a GPU")] = None,
    decode: Annotated[str, typer.Option(help="sequences that decode: COUNTxCONTEXT, with commas between")] = "",
    prefill: Annotated[str, typer.Option(help="prompt chunks: NEW+CONTEXT, with commas between")] = "",
    oracle: Annotated[str | None, typer.Option(help="latency oracle; package.module:Class for your own, FILE.npz for a"
                                               " profile; by default measured where one ships, else learned")] = None,
    serve: dict[str, Any] | None = None,
) -> None:
    """Price one step of an engine, kernel by kernel: what runs, how long, and what bounds it."""
    from ksim.cli.screen import console
    from ksim.cli.step_table import show
    from ksim.flow.batch import Batch
    from ksim.foundation.errors import ConfigError
    from ksim.simulation.assembly import Site
    from ksim.simulation.scenario import ANY_WORKLOAD, Scenario
    from ksim.simulation.sizing import check_step

    try:
        batch = Batch.parse(decode, prefill)
    except ValueError as error:
        raise ConfigError("--decode, --prefill", str(error)) from None
    table = {"model": model, "gpu": gpu, "system": system, "oracle": oracle_of(oracle), "serve": serve or {},
             "workload": ANY_WORKLOAD}
    site = Site.of(Scenario.of(given(table), "step"))
    check_step(site.model, site.shards, site.gpu, site.scenario.serve, site.system, batch)
    timelines = [timer.step_cost(batch) for timer in site.timers()]
    show(console(), site, batch, timelines)
