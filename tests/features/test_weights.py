"""Weights in host memory: what they free on GPUs, and what their way over PCIe costs."""

import pytest

from ksim import KsimError, Scenario
from ksim.deploy.commands import ImportOptions
from ksim.deploy.importing import scenario_text
from ksim.deploy.texts import Pasted
from ksim.flow.batch import Batch
from ksim.foundation.units import GIB
from ksim.network.routes import PCIE, Machines, SystemLinks
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import ANY_WORKLOAD


def deployment(gib: float, model: str = "llama-3.1-8b", **settings: object) -> Deployment:
    return Deployment.of(Scenario.of({
        "model": model, "gpu": "h100", "oracle": "roofline", "workload": ANY_WORKLOAD,
        "serve": {"max_model_len": 4096, "cpu_offload_gb": gib, **settings}}))


@pytest.mark.parametrize("ranks", [{}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_a_step_takes_longer_by_the_way_of_its_weights_over_pcie(ranks):
    plain, offloading = deployment(0.0, **ranks), deployment(3.0, **ranks)
    rate = SystemLinks(Machines(plain.system, plain.gpu)).by_kind[PCIE].capacity
    batch = Batch.of((1, 900), (1, 20), (300, 0))
    for usual, longer in zip(*([timer.step_cost(batch) for timer in each.timers()] for each in (plain, offloading)),
                             strict=True):
        assert longer.seconds - usual.seconds == pytest.approx(3.0 * GIB / rate)
        assert longer.joules > usual.joules


def test_each_gpu_has_as_much_more_room_for_kv():
    plain, offloading = deployment(0.0), deployment(3.0)
    block = plain.layout.block_bytes[0]
    assert (offloading.kv_blocks - plain.kv_blocks) * block == pytest.approx(3.0 * GIB, abs=block)


@pytest.mark.parametrize(("gib", "settings", "reason"), [
    (15.5, {}, "more than the 15.0 GiB of weights that a GPU has; set at most 15.0"),
    (7.6, {"tensor_parallel_size": 2}, "more than the 7.5 GiB")])
def test_more_than_there_is_is_refused(gib, settings, reason):
    with pytest.raises(KsimError, match=reason):
        deployment(gib, **settings)


def test_a_node_keeps_no_more_than_its_memory():
    with pytest.raises(KsimError, match=r"GPUs of a node would keep .* GiB in host memory"):
        deployment(700.0, "llama-3.1-405b", data_parallel_size=8)


def test_vllms_flag_says_it():
    line = Pasted("vllm serve meta-llama/Llama-3.1-8B-Instruct --cpu-offload-gb 4")
    text = scenario_text([line], ImportOptions(gpu="h200"))
    assert "cpu_offload_gb = 4" in text
