"""Metrics by the names that their exporters give them, as HPAs and ScaledObjects ask for them.

Engines' are vLLM's and SGLang's, with or without the prefix, or with "_" for ":" as an adapter writes them; those of a
whole pool and its gateway are the Gateway API inference extension's and llm-d's.
"""

import re
from collections.abc import Callable, Sequence

from attrs import frozen

from ksim.autoscaling import PoolView
from ksim.autoscaling.pod_metrics import MetricError
from ksim.foundation.errors import did_you_mean

#: Fields of a replica by the names of vLLM and SGLang, without their prefixes.
_PODS = {"num_requests_running": "running", "num_requests_waiting": "waiting", "kv_cache_usage_perc": "kv_usage",
         "gpu_cache_usage_perc": "kv_usage", "num_running_reqs": "running", "num_queue_reqs": "waiting",
         "token_usage": "kv_usage", "in_flight_tokens": "in_flight_tokens"}
_PREFIXES = ("vllm", "sglang")


def _mean(field: str) -> Callable[[PoolView, int], float]:
    return lambda pool, _: pool.total(field) / len(pool.ready) if pool.ready else 0.0


def _sum(field: str) -> Callable[[PoolView, int], float]:
    return lambda pool, _: pool.total(field)


def _under_way(pool: PoolView, _: int) -> float:
    """What the gateway has sent and is not over: it runs at engines, or waits there."""
    return pool.total("running") + pool.total("waiting")


def _saturation(pool: PoolView, _: int) -> float:
    """The mean of the engines' saturations by llm-d's utilization detector, with its thresholds by default: 5 requests
    that wait, and 0.8 of a KV cache."""
    each = [max(replica.waiting / 5, replica.kv_usage / 0.8) for replica in pool.ready]
    return sum(each) / len(each) if each else 1.0


#: What a whole pool and its gateway have, by the names of the inference extension and of llm-d.
_WHOLE: dict[str, Callable[[PoolView, int], float]] = {
    "inference_pool_average_kv_cache_utilization": _mean("kv_usage"),
    "inference_pool_average_queue_size": _mean("waiting"),
    "inference_pool_average_running_requests": _mean("running"),
    "inference_pool_ready_pods": lambda pool, _: float(len(pool.ready)),
    "inference_extension_flow_control_queue_size": lambda _, held: float(held),
    "inference_objective_running_requests": _under_way,
    "llm_d_epp_flow_control_queue_size": lambda _, held: float(held),
    "llm_d_epp_flow_control_pool_saturation": _saturation,
    "llm_d_epp_request_running": _under_way,
    "igw_queue_depth": lambda _, held: float(held),
    "igw_running_requests": _sum("running"),
}


def _bare(name: str) -> str:
    """*name* without the prefix of an engine."""
    for prefix in _PREFIXES:
        for end in (":", "_"):
            if name.startswith(prefix + end):
                return name[len(prefix) + 1:]
    return name


def of_pods(name: str) -> Callable[[PoolView], Sequence[float]]:
    """What reads the metric called *name* of each ready replica; raises ValueError where engines give none such."""
    field = _PODS.get(_bare(name))
    if field is None:
        raise ValueError(f"nobody gives the metric {name!r} of engines{did_you_mean(_bare(name), _PODS)}; there are"
                         f" {', '.join(_PODS)}")
    return lambda pool: [float(getattr(replica, field)) for replica in pool.ready]


def of_whole(name: str) -> Callable[[PoolView, int], float]:
    """What reads the metric called *name* of a pool and of the requests that its gateway holds; of one that engines
    give, it is their sum.

    Raises ValueError where nobody gives it.
    """
    if name in _WHOLE:
        return _WHOLE[name]
    if (field := _PODS.get(_bare(name))) is not None:
        return _sum(field)
    raise ValueError(f"nobody gives the metric {name!r}{did_you_mean(name, [*_WHOLE, *_PODS])}; there are"
                     f" {', '.join(_WHOLE)}, and of engines, summed, {', '.join(_PODS)}")


#: A query of PromQL: a metric with or without labels, in an aggregation or not.
_QUERY = re.compile(r"(?:(?P<of>[a-z]+)\()?\s*(?P<metric>[A-Za-z_:][\w:]*)\s*(?:\{[^{}]*\})?\s*(?(of)\))")
_AGGREGATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum, "max": max, "min": min, "avg": lambda values: sum(values) / len(values)}


@frozen
class Query:
    """A query of a metric of engines, aggregated, or of a pool's; `strict` if nothing is a failure, and not 0."""

    metric: str
    aggregation: str
    strict: bool = False

    @classmethod
    def of(cls, text: str, strict: bool = False) -> "Query":
        """The query that *text* means, whose labels are not looked at: all series are of the pool.

        Raises ValueError where it is another expression, or nobody gives its metric.
        """
        match = _QUERY.fullmatch(text.strip())
        if match is None or match["of"] not in (None, *_AGGREGATIONS):
            raise ValueError(f"the query {text!r} is not simulated; write one metric as in"
                             f" sum(vllm:num_requests_waiting), with {', '.join(_AGGREGATIONS)}")
        metric, aggregation = match["metric"], match["of"] or ""
        if metric not in _WHOLE:
            of_pods(metric)
            if not aggregation:
                raise ValueError(f"the query {text!r} has a value for each engine; write sum({metric}), or"
                                 f" {', '.join(name for name in _AGGREGATIONS if name != 'sum')}")
        return cls(metric, aggregation, strict)

    def read(self, pool: PoolView, held: int) -> float:
        """Its value; raises MetricError where there is none and that is a failure."""
        if self.metric in _WHOLE:
            return _WHOLE[self.metric](pool, held)
        values = of_pods(self.metric)(pool)
        if values:
            return float(_AGGREGATIONS[self.aggregation](values))
        if self.strict:
            raise MetricError(f"no engine gives {self.metric}")
        return 0.0
