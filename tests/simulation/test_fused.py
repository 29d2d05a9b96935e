"""All-reduces that an engine leaves to FlashInfer."""

import pytest

from ksim.flow.batch import Batch
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario

LOAD = {"synthetic": {"arrivals": {"process": "burst"}, "count": 1, "prompt": {"kind": "fixed", "value": 8},
                      "output": {"kind": "fixed", "value": 2}}}


def spans(gpu="b200", tokens=64, **serve):
    deployment = Deployment.of(Scenario.of({"model": "llama-3.1-70b", "gpu": gpu, "workload": LOAD,
                                "serve": {"tensor_parallel_size": 8, **serve}}))
    (timer,) = deployment.timers()
    return list(timer.step_cost(Batch.parse(f"{tokens}x1024", "")))


def test_small_all_reduces_use_fused_kernels():
    routes = {span.launch for span in spans(fuse_allreduce_rms=True) if span.family == "all_reduce"}
    assert routes == {"fused fused"}
    assert "fused fused" not in {span.launch for span in spans() if span.family == "all_reduce"}


def test_all_reduces_above_the_limit_are_not_fused():
    """64 tokens of 16 KiB are the 1 MiB that vLLM fuses among eight B200; 72 are more."""
    assert spans(tokens=72, fuse_allreduce_rms=True) == spans(tokens=72)
    assert spans(tokens=72, fuse_allreduce_rms=True, fi_allreduce_fusion_max_size_mb=8) != spans(tokens=72)


@pytest.mark.parametrize(("gpu", "ranks"), [("a100-80g", 8), ("b200", 1)])
def test_fusion_changes_nothing_without_a_measurement_or_an_all_reduce(gpu, ranks):
    serve = {"tensor_parallel_size": ranks}
    assert spans(gpu, **serve, fuse_allreduce_rms=True) == spans(gpu, **serve)
