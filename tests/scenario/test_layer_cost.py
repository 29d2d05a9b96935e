"""Tables of priced layers, and two of them side by side."""

import pytest
from attrs import evolve

from ksim import Layer
from tests.scenario.layers import ATTEND, LLAMA, SIZES, UNFUSED

FUSED = Layer([ATTEND], SIZES, "fused").on("h200", oracle="waves")
APART = UNFUSED.on("h200", oracle="waves")


def test_the_table_has_a_line_for_each_launch_and_totals():
    priced = LLAMA.on("a100-80g", tensor=8)
    title, head, rule, *lines = str(priced).splitlines()
    assert title == "llama on 8 x A100 SXM 80 GB, figures of one GPU"
    assert " ".join(head.split()) == "label kernel shape runs GFLOP MB sent MB us mJ bound source"
    assert set(rule) == {"─"}
    assert [line.split()[0] for line in lines[: len(priced.rows)]] == [row.label for row in priced.rows]
    assert lines[len(priced.rows) + 1].startswith("total ")
    for figure in (f"{1e3 * priced.seconds:.2f} ms", f"{1e3 * priced.joules:.0f} mJ a GPU",
                   f"{priced.all_joules:.2f} J in all", f"{priced.watts:.0f} W a GPU"):
        assert figure in lines[-1]


def test_columns_stand_below_each_other():
    priced = LLAMA.on("a100-80g", tensor=8)
    _, head, _, *lines = str(priced).splitlines()
    column = head.index("kernel")
    assert [line[column:].split()[0] for line in lines[: len(priced.rows)]] == [row.kernel for row in priced.rows]


def test_the_table_warns_of_power_above_the_limit():
    for share, told in ((0.99, True), (1.01, False)):
        power = evolve(APART.gpu.power, limit=share * APART.watts)
        assert ("above its limit of" in str(evolve(APART, gpu=evolve(APART.gpu, power=power)))) is told


def test_hidden_time_is_marked():
    row = evolve(APART.rows[0], hidden=APART.rows[0].seconds)
    assert "hidden)" in row.cells[-2]
    assert row.exposed == 0


def test_the_fused_kernel_moves_fewer_bytes_and_takes_less():
    ratios = APART.compare(FUSED).ratios
    assert ratios["bytes"] < 0.1
    assert ratios["seconds"] < 1 > ratios["joules"]
    assert ratios["seconds"] == pytest.approx(FUSED.seconds / APART.seconds)
    assert "sent" not in ratios


def test_a_comparison_lists_the_labels_of_both_layers_in_order():
    first, second = (Layer([LLAMA.operations[1], *operations, LLAMA.operations[5]], SIZES).on("h200", oracle="waves")
                     for operations in (UNFUSED.operations, [ATTEND]))
    _, titles, head, _, *lines = str(first.compare(second)).splitlines()
    assert titles.startswith("B: layer on 1 x H200")
    assert " ".join(head.split()) == "label us A us B mJ A mJ B MB A MB B sent MB A sent MB B"
    assert [line.split()[0] for line in lines[:-1] if line] == [
        "qkv", "QK", "softmax", "AV", "attention", "o_proj", "total"]
    assert lines[-1].startswith("B over A: seconds 0.")
