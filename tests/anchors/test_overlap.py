"""How overlap should look: what measured collectives make of their SMs, and for whom it pays."""

from collections import defaultdict
from statistics import median

import pytest

from ksim.flow.batch import Batch
from ksim.network.routes import Hop
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from tests.anchors.errors import Errors, rows
from tests.scenario.tables import TABLE

#: Bytes/s that rings reach of a GPU's links, by the beginning of its name.
LINKS = {"h": 371e9, "b": 722e9, "g": 722e9}
#: Mean absolute error in percent of DeepEP's bandwidth over 4 to 24 SMs, with one figure for an SM.
FOUND = {
    "combine": {"h100_sxm": 6.6, "h200_sxm": 6.6, "b200_sxm": 3.6, "b300_sxm": 3.9, "gb200": 7.3, "gb300": 8.2},
    "dispatch": {"h100_sxm": 5.6, "h200_sxm": 5.7, "b200_sxm": 5.3, "b300_sxm": 5.6, "gb200": 7.5, "gb300": 9.0},
}


def deepep() -> dict[tuple[str, str], dict[int, float]]:
    """Bytes/s that a rank sends, by GPU, operation and SMs; of at least 16,384 tokens to 128 experts or more."""
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows("kernels/deepep.parquet"):
        if row["mode"] == "normal" and row["experts"] >= 128 and row["tokens"] >= 16384:
            ranks = 4 if row["gpu"].startswith("g") else 8
            copies = ranks * (1 - (1 - 1 / ranks) ** row["topk"])
            each = row["hidden"] * (2 if row["op"] == "combine" else 1 + 4 / 128)
            sent = row["tokens"] * copies * each * (ranks - 1) / ranks
            found[row["op"], row["gpu"]][row["sms"]].append(sent / row["latency_us"] * 1e6)
    return {key: {sms: median(rates) for sms, rates in sorted(by_sms.items())} for key, by_sms in found.items()}


def test_bandwidth_grows_with_the_sms_until_the_links_are_full():
    measured = deepep()
    assert measured.keys() == {(op, gpu) for op, gpus in FOUND.items() for gpu in gpus}
    for (op, gpu), rates in measured.items():
        channel = median(rate / sms for sms, rate in rates.items())
        hop = Hop(0, 1, 0.0, 1 / LINKS[gpu[0]], share=1.0)
        errors = Errors.of((1 / hop.within(sms * channel).per_byte, rate) for sms, rate in rates.items())
        assert errors.mean * 100 < FOUND[op][gpu] + 0.5, (op, gpu, errors)


def prefill(tensor: int, stages: int = 1, sms: int = 0) -> float:
    """Seconds of a prompt of 4,096 tokens for Llama 3.1 70B on A100."""
    serve = {"tensor_parallel_size": tensor, "overlap_stages": stages, "overlap_sms": sms}
    table = {**TABLE, "model": "llama-3.1-70b", "gpu": "a100-80g", "system": None, "serve": serve}
    return Deployment.of(Scenario.of(table)).timers()[0].step_cost(Batch.of((4096, 0))).seconds


def test_too_few_sms_and_too_many_are_both_worse():
    """EnergyLens gives communication 1, 4 or 16 SMs: the first starve it, and too many starve compute."""
    plain, *found = prefill(8), *(prefill(8, 4, sms) for sms in (1, 4, 16, 48))
    one, four, sixteen, many = found
    assert one > four > sixteen < many
    assert 0.9 * plain < sixteen < plain < four


@pytest.mark.parametrize("sms", [1, 4, 16])
def test_two_gpus_have_too_little_to_send_for_it_to_pay(sms):
    """As most of one front of energy and latency that EnergyLens measured is TP2 without overlap."""
    assert prefill(2) < prefill(2, 4, sms)
