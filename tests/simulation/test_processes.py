"""Studies that a plain script starts: its processes run the script again only for a plug-in that stands in it."""

import subprocess
import sys

import pytest

from ksim.foundation.errors import KsimError
from ksim.simulation.processes import _Program

SCRIPT = '''
import ksim
{definition}
scenario = ksim.Scenario.of({{
    "model": "llama-3.2-1b", "gpu": "h200", "oracle": "roofline", "serve": {{"scheduling_policy": "{policy}"}},
    "workload": {{"synthetic": {{"count": 2, "arrivals": {{"process": "poisson", "rate": 8.0}},
                                "prompt": {{"kind": "fixed", "value": 9}},
                                "output": {{"kind": "fixed", "value": 2}}}}}}}})
print([(point.value("completed"), point.outcome.problem)
       for point in ksim.sweep(scenario, {{"serve.max_num_seqs": [2, 4]}}, jobs=2).points])
'''
OWN = "class Last:\n    def victim(self, running):\n        return running[-1]"


@pytest.mark.parametrize(("definition", "policy", "wanted"), [
    ("", "fcfs", "[(2, ''), (2, '')]"),
    (OWN, "__main__:Last", "put what starts processes under `if __name__ == \"__main__\":`"),
], ids=["no plug-in", "its own plug-in"])
def test_a_script_without_a_guard_starts_a_study_or_is_told_to_have_one(definition, policy, wanted, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(definition=definition, policy=policy))
    run = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert wanted in run.stdout and not run.stderr


def test_a_process_runs_the_program_once_and_for_what_stands_in_it(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(f"{OWN}\n\nif __name__ == '__main__':\n    raise SystemExit\n")
    program = _Program("", str(path))
    assert not hasattr(program, "__path__") and "Last" not in vars(program)
    assert program.Last().victim([1, 2]) == 2 and program.Last is program.Last
    with pytest.raises(AttributeError, match="no attribute 'First'"):
        _ = program.First


def test_a_program_that_asks_for_its_own_plug_in_while_it_runs_again_is_told_why(tmp_path, monkeypatch):
    """As `ksim.capacity` does, which checks its set-ups before it starts processes."""
    path = tmp_path / "script.py"
    path.write_text(f"import sys\n{OWN}\nsys.modules['__main__'].Last\n")
    monkeypatch.setitem(sys.modules, "__main__", program := _Program("", str(path)))
    with pytest.raises(KsimError, match="put what starts processes under `if __name__"):
        _ = program.Last
