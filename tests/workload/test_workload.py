"""A workload as a scenario writes it."""

import tomllib

import pytest

from ksim.foundation.config import plain, structure
from ksim.foundation.errors import ConfigError
from ksim.workload.replay import Workload
from ksim.workload.rows import Ledger

SYNTHETIC = """
max_concurrency = 8

[synthetic]
count = 20
prompt = { kind = "lognormal", mean = 800, sigma = 0.7 }
output = { kind = "table", name = "azure-conv-2023" }
arrivals = { process = "gamma", rate = 4.0, burstiness = 0.5 }
prefixes = { groups = 3, tokens = 512 }
sessions = { turns = { kind = "uniform", low = 1, high = 6 }, think = { kind = "exponential", mean = "5 s" } }
priorities = [0, 0, 1]
max_tokens = 32768
"""


def test_a_synthetic_workload_is_read_from_toml():
    workload = structure(Workload, tomllib.loads(SYNTHETIC))
    assert workload.max_concurrency == 8
    assert workload.synthetic.sessions.think.mean == 5
    assert len(list(workload.requests(0))) == 20
    assert structure(Workload, plain(workload)) == workload


def test_a_replay_is_read_from_toml(trace):
    path = trace("arrival,prompt,output\n0,5,1\n2,5,0\n")
    workload = structure(Workload, tomllib.loads(f'[replay]\npath = "{path}"\nstart = "0 s"\nempty = "skip"\n'))
    ledger = Ledger()
    assert len(list(workload.requests(0, ledger))) == 1
    assert ledger.remarks() == ["rows without output tokens (failed requests), dropped: 1"]
    assert structure(Workload, plain(workload)) == workload


@pytest.mark.parametrize(("table", "message"), [
    ("", "a workload is either replay or synthetic"),
    (SYNTHETIC + '[replay]\npath = "a"', "a workload is either replay or synthetic"),
    (SYNTHETIC.replace("concurrency = 8", "concurrency = 0"), "'max_concurrency' must be > 0: 0"),
    (SYNTHETIC.replace("sigma", "sgma"), "synthetic.prompt.sgma: unknown key; did you mean 'sigma'"),
    (SYNTHETIC.replace("mean = 800, ", ""), "synthetic.prompt: give either mean or median"),
    (SYNTHETIC.replace("low = 1", "low = 9"), r"synthetic.sessions.turns: low \(9\) must not be above high \(6\)"),
    (SYNTHETIC.replace("tokens = 512", "tokens = 0"), "synthetic.prefixes: 'tokens' must be > 0: 0"),
    (SYNTHETIC.replace("[0, 0, 1]", '["low"]'), r"synthetic.priorities\[0\]: expected a whole number, not 'low'"),
    (SYNTHETIC.replace(", burstiness = 0.5", ""), "arrivals: process 'gamma' takes a burstiness"),
])
def test_a_faulty_workload_is_an_error_by_key(table, message):
    with pytest.raises(ConfigError, match=message):
        structure(Workload, tomllib.loads(table), "scenario.toml")
