"""Steps of vLLM 0.22 on an H200: recorded while serving, and as the GPU's own profiler saw them."""

import gzip
import json
import re
from functools import cache
from itertools import groupby, pairwise
from statistics import median

import pytest

from ksim.cost.step import StepTimer
from ksim.flow.batch import Batch
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from tests.anchors.errors import DATA, Errors, rows
from tests.scenario.tables import TABLE

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b")


@cache
def timer(model: str) -> StepTimer:
    serve = {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "max_model_len": 16384}
    return Deployment.of(Scenario.of({**TABLE, "model": model, "serve": serve})).timers()[0]


def steady(model: str) -> dict[str, list[tuple[float, float]]]:
    """Of each static run, (predicted, measured) seconds of the steps in which all of its sequences decode.

    Scheduling is asynchronous, so a step takes from one schedule to the next
    as long as the GPU is what all wait for.
    """
    found = {}
    for run, group in groupby(rows(f"h200/steps_{model}.parquet"), key=lambda row: row["run"]):
        if not run.startswith("static"):
            continue
        sequences, steps = int(run.rpartition("-c")[2]), list(group)
        decoding = [(one, other) for one, other in pairwise(steps)
                    if one["prefills"] == other["prefills"] == "[]" and one["decodes"] == other["decodes"] == sequences]
        found[run] = [(predicted(model, sequences, one["decode_context_tokens"]),
                       other["schedule_start_s"] - one["schedule_start_s"]) for one, other in decoding[1:]]
    return found


def predicted(model: str, sequences: int, context: int) -> float:
    each, over = divmod(context, sequences)
    return timer(model).step_cost(Batch.of(*((1, each + (i < over)) for i in range(sequences)))).seconds


@pytest.mark.parametrize("model, mean, worst", [
    ("llama-3.1-8b", 0.065, 0.13),  # found 5.7 %, and 12.4 % at worst: of 256 sequences; all of it is too fast
    ("qwen3-30b-a3b", 0.05, 0.09),  # 4.4 % and 8.7 %, too fast but for one run
])
def test_decoding_takes_as_long_as_recorded(model, mean, worst):
    """By the median step of each run, of 1 to 256 sequences and 128 to 12,000 tokens of context."""
    runs = steady(model)
    assert len(runs) == 10
    errors = Errors.of((median(ours for ours, _ in steps), median(theirs for _, theirs in steps))
                       for steps in runs.values())
    assert errors.mean < mean and errors.worst < worst, errors


def batch(label: str) -> Batch:
    """The batch that a profile's label describes."""
    numbers = [int(number) for number in re.findall(r"\d+", label)]
    if label.startswith("decode"):
        return Batch.of(*[(1, numbers[1])] * numbers[0])
    if label.startswith("mixed"):
        return Batch.of(*[(1, 1024)] * numbers[0], (numbers[1], 0))
    return Batch.of((numbers[0], 0))


@pytest.mark.parametrize("model, mean, worst", [
    ("llama-3.1-8b", 0.05, 0.13),  # found 4.6 %, and 12.6 % at worst: a prefill of 2,048 tokens
    ("qwen3-30b-a3b", 0.05, 0.12),  # 4.6 % and 11.6 %, of the same
])
def test_kernels_keep_the_gpu_busy_as_long_as_profiled(model, mean, worst):
    """Five decodes, four prefills of up to 8,000 tokens, and both in one step: all their kernels' time."""
    path = DATA / "h200" / f"profile_{model}.json.gz"
    if not path.exists():
        pytest.skip(f"the profiles are not at {path}")
    errors = Errors.of(
        (timer(model).step_cost(batch(step["label"])).seconds,
         1e-6 * sum(kernel["us"] for kernel in step["kernels"]) / step["steps"])
        for step in json.loads(gzip.decompress(path.read_bytes())))
    assert errors.mean < mean and errors.worst < worst, errors
