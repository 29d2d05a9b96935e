"""Flags of engines that span nodes: what each node's line says of the whole."""

from collections.abc import Mapping, Sequence
from functools import partial

from ksim.deploy.flags.given import Given
from ksim.deploy.flags.meaning import Handler, Reading

_BALANCED = "each rank gets the requests that a balancer outside sends it: ksim's `router` chooses among all ranks"
#: Flags that are above zero on every node but the first.
_FURTHER = ("node_rank", "data_parallel_start_rank", "data_parallel_rank")


def _balanced(reading: Reading, given: Given) -> None:
    if given.value:
        reading.remark(given, _BALANCED)


def _read_elsewhere(reading: Reading, given: Given) -> None:
    """Say nothing of a flag that the program itself reads."""


def _pass_over(why: str, reading: Reading, given: Given) -> None:
    reading.pass_over(given, why)


def is_further(given: Sequence[Given]) -> bool:
    """Whether the line starts a further node of an engine that another line starts."""
    return any((one.dest == "headless" and one.value) or (one.dest in _FURTHER and (one.value or 0) > 0)
               for one in given)


def balances_itself(given: Sequence[Given]) -> bool:
    """Whether vLLM's own balancer chooses among data-parallel ranks."""
    outside = ("data_parallel_external_lb", "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb",
               "data_parallel_rank")
    return not any(one.dest in outside and one.value not in (None, False) for one in given)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("data_parallel_size_local", "headless", "nnodes", *_FURTHER),
                    partial(_pass_over, "ksim places ranks on nodes by itself")),
    **dict.fromkeys(("data_parallel_external_lb", "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb"),
                    _balanced),
    "port": partial(_pass_over, "addresses, ports and certificates change no schedule"),
    **dict.fromkeys(("model", "config"), _read_elsewhere)}
