"""Whether GPUs can keep to a power cap: before a run for the steps that it may have, and after it for those it had."""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from ksim.cost.clock import Clock, Setting
from ksim.engine.governors import checked
from ksim.flow.batch import Batch
from ksim.foundation.errors import ConfigError
from ksim.simulation.assembly import Site
from ksim.simulation.sizing import kv_blocks

#: Tokens of the shorter of the two prompts that are tried.
SHORT = 512


def check(site: Site) -> None:
    """Raise ConfigError for a cap that none of a run's steps could keep.

    A GPU draws least at its lowest clock.  Tried there are decodes of few and many sequences with little and much in
    the cache, a short prompt, and the longest chunk of one: a cap below what each of them draws is below what mixtures
    of them draw.
    """
    cap = site.scenario.power.cap
    if cap is None:
        return
    checked(Setting(cap), site.gpu, "power")
    drawn = {words: max(_drawn(site, batch)) for words, batch in _tried(site).items()}
    words, least = min(drawn.items(), key=lambda item: item[1])
    if cap < least:
        raise ConfigError("power.cap", f"no step of {site.model.name} keeps {cap:g} W on {site.gpu.name}: at its lowest"
                                       f" clock, {_lowest(site) / 1e6:g} MHz, {words} draws {least:.0f} W; the lowest"
                                       f" cap that all of them keep is about {ceil(max(drawn.values()))} W")


def remarks(site: Site, summary: Mapping[str, Any]) -> Iterator[str]:
    """What to say of a run's cap where GPUs drew more, in some steps or on average."""
    cap, share = site.scenario.power.cap, summary["above_limit_share"]
    if cap is None or not summary["duration"]:
        return
    mean = summary["average_watts"] / summary["gpus"]
    if share:
        yield (f"power.cap = {cap:g} W was not kept: for {share:.1%} of their time at work, GPUs drew up to"
               f" {summary['max_step_watts']:.0f} W at their lowest clock, {_lowest(site) / 1e6:g} MHz; over the whole"
               f" run they drew {mean:.0f} W each")
    elif mean > cap:
        credit = site.gpu.power.clocks.credit if site.gpu.power.clocks else 0.0
        yield (f"power.cap = {cap:g} W was kept only in the long run: GPUs drew {mean:.1f} W each on average, as"
               f" {site.gpu.name} may spend {credit:g} J above its limit before its clock falls")


def _tried(site: Site) -> dict[str, Batch]:
    """Kinds of steps in words, and one of each."""
    serve = site.scenario.serve
    tokens = kv_blocks(site.model, site.shards, site.gpu, serve, site.system) * (serve.block_size or 1)
    most, sequences, length = serve.max_num_batched_tokens, serve.max_num_seqs, serve.max_model_len
    assert most and sequences and length, "settings are derived before engines are built"
    chunk = min(most, length - 1)
    counts = sorted({sequences, *(4**power for power in range(6) if 4**power < sequences)})
    decodes = {f"a decode of {count} after {context} tokens": Batch.of(*[(1, context)] * count) for count in counts
               for context in (1, max(1, min(length - 1, tokens // count)))}
    return decodes | {f"a prompt of {new} tokens": Batch.of((new, 0)) for new in {min(SHORT, chunk), chunk}}


def _drawn(site: Site, batch: Batch) -> Iterator[float]:
    """Watts of the GPUs of each stage at their lowest clock."""
    power = site.gpu.power
    assert power.clocks is not None, "a cap needs clocks"
    clock = Clock(power, power.clocks)
    return (clock.least_watts(timer.step_cost(batch)) for timer in site.timers())


def _lowest(site: Site) -> float:
    return site.gpu.power.clocks.least if site.gpu.power.clocks else 0.0
