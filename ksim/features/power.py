"""Power settings: a cap, a clock or a governor of the GPUs.

Whether GPUs can keep to a cap is said before a run, by the steps that it may have, and after it, by those it had.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from ksim.cost.energy import Clock, Setting
from ksim.engine.governors import Supervised, checked
from ksim.flow.batch import Batch
from ksim.foundation.catalog import plugin
from ksim.foundation.errors import ConfigError
from ksim.scenario.defaults import Deployment
from ksim.simulation.features import WiredFeature
from ksim.simulation.pool import EnginePool

__all__ = ["FEATURE"]

#: Tokens of the shorter of the two prompts that are tried.
SHORT_PROMPT = 512


def _check(deployment: Deployment) -> None:
    """Raise ConfigError for a power cap that none of the engines' steps could keep.

    A GPU draws least at its lowest clock.  At that clock, decodes of few and many sequences with little and much in
    the cache, a short prompt and the longest chunk are tried.  A cap below what each of them draws is also below what
    any mixture of them draws.
    """
    cap, gpu = deployment.scenario.power.cap, deployment.gpu
    if cap is None:
        return
    checked(Setting(cap), gpu, "power")
    drawn = {words: max(_least_watts(deployment, batch)) for words, batch in _typical_steps(deployment).items()}
    words, least = min(drawn.items(), key=lambda item: item[1])
    if cap < least:
        raise ConfigError("power.cap", f"no step of {deployment.model.name} keeps {cap:g} W on {gpu.name}: at its"
                                       f" lowest clock, {_lowest_megahertz(deployment)}, {words} draws {least:.0f} W;"
                                       f" the lowest cap that all of them keep is about {ceil(max(drawn.values()))} W")


def _either(texts: Iterable[str]) -> str:
    """*texts*, each of them once."""
    return " or ".join(dict.fromkeys(texts))


def _typical_steps(deployment: Deployment) -> dict[str, Batch]:
    """Typical steps, by a description of each."""
    serve = deployment.serve
    tokens = deployment.layout.room(deployment.kv_blocks, serve.max_model_len or 1)
    most, sequences, length = serve.max_num_batched_tokens, serve.max_num_seqs, serve.max_model_len
    assert most and sequences and length, "settings are derived before engines are built"
    chunk = min(most, length - 1)
    counts = sorted({sequences, *(4**power for power in range(6) if 4**power < sequences)})
    decodes = {f"a decode of {count} after {context} tokens": Batch.of(*[(1, context)] * count) for count in counts
               for context in (1, max(1, min(length - 1, tokens // count)))}
    return decodes | {f"a prompt of {new} tokens": Batch.of((new, 0)) for new in {min(SHORT_PROMPT, chunk), chunk}}


def _least_watts(deployment: Deployment, batch: Batch) -> Iterator[float]:
    """The watts of a GPU of each stage at its lowest clock."""
    power = deployment.gpu.power
    assert power.clocks is not None, "a cap needs clocks"
    clock = Clock(power, power.clocks)
    return (clock.least_watts(timer.step_cost(batch)) for timer in deployment.timers())


def _lowest_megahertz(deployment: Deployment) -> str:
    clocks = deployment.gpu.power.clocks
    return f"{clocks.least / 1e6 if clocks else 0.0:g} MHz"


class PowerFeature(WiredFeature):
    """GPUs that keep to power settings."""

    def governor(self, deployment: Deployment) -> Supervised:
        """What sets them; raises ConfigError for what GPUs cannot be set to."""
        power = deployment.scenario.power
        fixed = checked(Setting(power.cap, power.clock), deployment.gpu, "power")
        return Supervised(deployment.gpu, fixed, plugin("engine.governors", power.governor) if power.governor else None)

    def check_run(self, pools: Sequence[EnginePool]) -> None:
        """Raise ConfigError for a power cap that none of the steps of a pool could keep."""
        for pool in pools:
            _check(pool.deployment)

    def run_remarks(self, pools: Sequence[EnginePool], summary: Callable[[], Mapping[str, Any]]) -> Iterator[str]:
        """Remarks on a power cap that GPUs exceeded, in some steps or on average."""
        cap, deployments = pools[0].deployment.scenario.power.cap, [pool.deployment for pool in pools]
        if cap is None or not (numbers := summary())["duration"]:
            return
        mean = numbers["average_watts"] / numbers["gpus"]
        if share := numbers["above_limit_share"]:
            yield (f"power.cap = {cap:g} W was not kept: for {share:.1%} of their time at work, GPUs drew up to"
                   f" {numbers['max_step_watts']:.0f} W at their lowest clock,"
                   f" {_either(map(_lowest_megahertz, deployments))}; over the whole run they drew {mean:.0f} W each")
        elif mean > cap:
            may = _either(f"{gpu.name} may spend {gpu.power.clocks.credit if gpu.power.clocks else 0.0:g} J above its"
                          " limit" for gpu in (deployment.gpu for deployment in deployments))
            yield (f"power.cap = {cap:g} W was kept only in the long run: GPUs drew {mean:.1f} W each on average, as"
                   f" {may} before its clock falls")


FEATURE = PowerFeature()
