"""Decisions of Dynamo's planner 0.9.1, interval by interval."""

from collections.abc import Iterator, Mapping
from math import isclose, nan
from typing import Any

from ksim.autoscaling.dynamo_planner_09 import DynamoPlanner09, Interval
from ksim.foundation.config import structure
from ksim.foundation.errors import KsimError
from ksim.validation.autoscalers import Case
from ksim.validation.autoscalers.planner import close_enough
from ksim.validation.schedules import Difference

Row = Mapping[str, Any]


def differences(case: Case, meta: Case) -> Iterator[Difference]:
    """Where decisions differ, forecasts or factors."""
    config = {"load_predictor": "constant", "profile": meta["profile"], **case["config"]}
    try:  # a forecast may need a library that is not installed
        planner = structure(DynamoPlanner09, config, case["name"])
        for index, row in enumerate(case["intervals"]):
            yield from _of_interval(index, row, planner)
    except KsimError as error:
        yield Difference(None, "load_predictor", config["load_predictor"], str(error))


def _of_interval(index: int, row: Row, planner: DynamoPlanner09) -> Iterator[Difference]:
    seen = Interval(*(nan if row[key] is None else float(row[key])
                      for key in ("num_req", "isl", "osl", "ttft_s", "itl_s", "duration_s")))
    wanted = planner.adjust(seen, row["replicas"][1])
    for key, value in zip(("prefill_correction", "decode_correction"), planner.factors, strict=True):
        if not isclose(row[key], value, rel_tol=1e-6):
            yield Difference(index, key, row[key], value)
    for key, value in (row["predicted"] or {}).items():
        own = None if planner.expected is None else planner.expected[("num_req", "isl", "osl").index(key)]
        if own is None or not isclose(value, own, rel_tol=close_enough(planner.load_predictor), abs_tol=1e-9):
            yield Difference(index, key, value, own)
    if row["decision"] != (None if wanted is None else [*wanted]):
        yield Difference(index, "decision", row["decision"], wanted)
