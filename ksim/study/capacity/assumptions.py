"""What a capacity answer takes for granted: the engines, the lengths of requests, and the prices."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from ksim.simulation.deployment import Deployment
from ksim.simulation.fleet import Fleet
from ksim.simulation.scenario import Scenario
from ksim.study.capacity.setups import SetUp
from ksim.study.capacity.traffic import Traffic, replication_seed
from ksim.study.capacity.trial import Plan

#: How many requests tell the lengths.
_SAMPLE = 1000
#: What an engine is, in the order in which it is said.
_ENGINE: tuple[Callable[[Deployment], str], ...] = (
    lambda made: made.model.name,
    lambda made: f"weights {made.serve.precision.weights}",
    lambda made: f"KV cache {made.serve.precision.cache}",
    lambda made: made.version.name,
    lambda made: f"{made.serve.gpu_memory_utilization:.3g} of the GPU's memory",
    lambda made: f"context {made.serve.max_model_len:,}",
    lambda made: f"{made.serve.max_num_batched_tokens:,} tokens and {made.serve.max_num_seqs:,} sequences a step",
    lambda made: f"prefix caching {'on' if made.serve.enable_prefix_caching else 'off'}",
)


def assumptions(scenario: Scenario, made: Sequence[SetUp], plan: Plan) -> tuple[str, ...]:
    """What the answers of set-ups *made* of *scenario* assume, in a line each for engines, requests and prices.

    What differs between set-ups or pools is said with all its values.
    """
    deployments = [pool.deployment for setup in made if setup.scenario is not None
                   for pool in Fleet.of(setup.scenario).pools]
    engines = ", ".join(_together(text(one) for one in deployments) for text in _ENGINE)
    return (f"engines: {engines}", f"requests: {', '.join(_requests(scenario, plan))}",
            f"prices: {', '.join(_prices(scenario))}")


def _together(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


def _requests(scenario: Scenario, plan: Plan) -> Iterator[str]:
    """Lengths and prompts that come again, of the first requests of the first replication."""
    traffic = Traffic.of(scenario.workload, plan.count)
    drawn = [*islice(traffic.requests(1.0, replication_seed(plan.seed, 0)), _SAMPLE)]
    for name, tokens in (("prompts", [request.prompt for request in drawn]),
                         ("outputs", [request.output for request in drawn])):
        median, high = np.percentile(tokens, (50, 99))
        yield f"{name} of {np.mean(tokens):,.0f} tokens on the mean (p50 {median:,.0f}, p99 {high:,.0f})"
    sharing = sum(bool(request.chunks) for request in drawn)
    yield f"{sharing / len(drawn):.0%} may share prefixes" if sharing else "none shares a prefix"
    synthetic = scenario.workload.synthetic
    yield f"{synthetic.arrivals.process} arrivals" if synthetic else "arrivals of the trace, faster or slower"


def _prices(scenario: Scenario) -> Iterator[str]:
    energy = scenario.energy
    hourly = energy.price_per_gpu_hour
    if isinstance(hourly, Mapping):
        yield ", ".join(f"{gpu} ${price:g}/h" for gpu, price in hourly.items())
    else:
        yield "none of GPUs" if hourly is None else f"${hourly:g}/h a GPU"
    yield "none of energy" if energy.price_per_kwh is None else f"${energy.price_per_kwh:g}/kWh at PUE {energy.pue:g}"
