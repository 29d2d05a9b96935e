"""`python -m benchmarks.research transfers`, as a user meets it."""

import json

from tests.research.command import research
from tests.research.transfer_rows import row, table


def test_transfers_are_compared_row_by_row(tmp_path):
    table(tmp_path, row(bytes=1e8, seconds=1.1e-3), row(bytes=1e9, seconds=7e-3), row(bytes=1e10, seconds=0.07),
          row(kind="p2p_prefix_pull_cpu_to_cpu"))
    out = research("transfers", "transfers.csv", "--json", "out.json", folder=tmp_path)
    assert "no bandwidth" in out and out.count("held back") == 2 and out.count("fitted") == 2
    assert out.splitlines()[-1].startswith("seconds of transfers: ")
    assert out.splitlines()[-1].endswith(" in the median of 1 rows held back, 2.38 % of all 3")
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert [found["fitted"] for found in outcome["transfers"]] == [True, False, True]
    assert outcome["median_ape"] > 0 and sum(outcome["refused"].values()) == 1
