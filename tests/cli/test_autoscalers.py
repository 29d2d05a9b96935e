"""`ksim autoscalers`, as a user meets it."""

import csv
import json

from ksim.scenario.scenario import Scenario
from tests.deploy.autoscalers import HPA
from tests.study.fleets import table

from .command import ksim


def test_it_writes_numbers_a_figure_and_a_scenario_that_runs(tmp_path):
    small = table()
    small["workload"]["synthetic"]["count"] = 40
    (tmp_path / "fleet.toml").write_text(Scenario.of(small).to_toml(), encoding="utf-8")
    asked = ("autoscalers", "fleet.toml", "--slots", "2", "--trials", "1", "-j", "1", "-o", "out")
    said = ksim(*asked, "--json", "out.json", folder=tmp_path)
    assert "regret, $" in said and "keeps SLO" in said
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["autoscalers.csv", "autoscalers.png",
                                                                         "perfect.toml"]
    best = json.loads((tmp_path / "out.json").read_text())["autoscalers"][0]
    ksim("run", "out/perfect.toml", "-o", "run", "--quiet", "--no-trace", "--no-plots", folder=tmp_path)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["gpu_dollars"] == best["cost"]
    assert "--force" in ksim(*asked, folder=tmp_path, code=1)
    assert "comes twice" in ksim("autoscalers", "fleet.toml", "--autoscalers", "wva,wva", folder=tmp_path, code=1)


def test_settings_are_varied_and_the_best_ones_kept(tmp_path):
    small = table()
    small["workload"]["synthetic"]["count"] = 40
    (tmp_path / "fleet.toml").write_text(Scenario.of(small).to_toml(), encoding="utf-8")
    asked = ("autoscalers", "fleet.toml", "--attainment", "0.9", "--slots", "2", "--trials", "0", "-j", "1")
    said = ksim(*asked, "--over", "perfect.sizes.a.1=[6.0,3],[7.0,2]", "-o", "out", folder=tmp_path)
    assert "is the cheapest that keeps the SLO, of 2 autoscalers: $" in " ".join(said.split())
    best = Scenario.read(tmp_path / "out" / "best.toml").autoscaler
    rows = [*csv.DictReader((tmp_path / "out" / "autoscalers.csv").open(encoding="utf-8"))]
    assert str(best.options["sizes"]["a"][1]) == rows[1]["perfect.sizes.a.1"] and rows[1]["keeps_slo"] == "True"
    assert "--over: expected key=value,value" in ksim(*asked, "--over", "perfect", folder=tmp_path, code=1)


def test_a_path_is_a_manifest_of_one_autoscaler(tmp_path):
    (tmp_path / "fleet.toml").write_text(Scenario.of(table()).to_toml(), encoding="utf-8")
    (tmp_path / "hpa.yaml").write_text(HPA, encoding="utf-8")
    (tmp_path / "two.yaml").write_text(f"{HPA}---\n{HPA}", encoding="utf-8")
    (tmp_path / "cpu.yml").write_text(HPA.replace("vllm:num_requests_running", "cpu"), encoding="utf-8")
    for name, says in (("hpa.yaml", "may ask for 8; set it to 8"), ("two.yaml", "has 2 documents of the kinds"),
                       ("cpu.yml", "cpu.yml:13: spec.metrics[1]: nobody gives the metric 'cpu'"),
                       ("none.yaml", "none.yaml: No such file")):
        assert says in ksim("autoscalers", "fleet.toml", "--autoscalers", name, folder=tmp_path, code=1), name
