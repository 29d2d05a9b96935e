"""EndpointPickerConfigs are read as llm-d reads them, and what is wrong in one is named."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from ksim.cluster.llm_d.assembly import picker_of
from ksim.cluster.llm_d.cycle import Chance, seconds
from ksim.cluster.llm_d.epp_config import EndpointPickerConfig
from ksim.flow.request import Request
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, KsimError
from tests.cluster.views import View

FLEETS = Path(__file__).parents[2] / "scenarios" / "fleets"
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
#: The configurations of llm-d's guides that its own tests load (llm-d-router, test/integration/epp, 2026).
DISAGGREGATED = HEAD + """
plugins:
- type: disagg-headers-handler
- type: always-disagg-pd-decider
- type: disagg-profile-handler
  parameters: {deciderPluginName: always-disagg-pd-decider}
- type: prefill-filter
- type: decode-filter
- type: prefix-cache-scorer
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: active-request-scorer
- type: max-score-picker
schedulingProfiles:
- name: prefill
  plugins:
  - {pluginRef: prefill-filter}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: max-score-picker}
- name: decode
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: active-request-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: max-score-picker}
"""
TIERED = HEAD + """
plugins:
- type: approx-prefix-cache-producer
  name: cpu-prefix-cache-producer
  parameters: {autoTune: false, lruCapacityPerServer: 1000}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- {type: prefix-cache-scorer, name: gpu-prefix-cache-scorer}
- {type: prefix-cache-scorer, name: cpu-prefix-cache-scorer, parameters: {producer: cpu-prefix-cache-producer}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2.0}
  - {pluginRef: gpu-prefix-cache-scorer, weight: 1.0}
  - {pluginRef: cpu-prefix-cache-scorer, weight: 1.0}
"""
PRECISE = HEAD + """
featureGates: [prepareDataPlugins]
plugins:
- {type: token-producer, parameters: {modelName: a-model}}
- type: endpoint-notification-source
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {blockSize: 64}
    indexerConfig: {kvBlockIndexConfig: {enableMetrics: true}}
    kvEventsConfig: {topicFilter: "kv@", discoverPods: true}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
- {type: no-hit-lru-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: precise-prefix-cache-producer}]
saturationDetector: {pluginRef: utilization-detector}
"""


def written(path: Path, text: str) -> EndpointPickerConfig:
    file = path / "epp.yaml"
    file.write_text(dedent(text), encoding="utf-8")
    return EndpointPickerConfig.read(file)


def picker(path: Path, text: str, splits: bool = False) -> Any:
    return picker_of(written(path, text), Chance(0), splits)


def decisions(router: Any) -> list[int]:
    engines = [View(number, 0, 0, waiting=number % 3, kv_usage=number / 10) for number in range(5)]
    return [router.choose(Request(number, 0.0, 640, 10, [(number % 4, place) for place in range(10)], 64), engines,
                          0.0).number for number in range(40)]


@pytest.mark.parametrize("name, options", [
    ("optimized_baseline", {}),
    ("prefix_affinity", {"scorers": {"token-load-scorer": 1.0}, "filters": ["prefix-cache-affinity-filter"]}),
])
def test_a_guide_s_file_and_the_same_as_options_decide_alike(name, options):
    from_file = plugin("cluster.routers", Choice("llm_d", {"config": str(FLEETS / f"{name}.yaml")}))
    assert decisions(from_file) == decisions(plugin("cluster.routers", Choice("llm_d", options)))


@pytest.mark.parametrize("name", ["optimized_baseline", "prefix_affinity"])
def test_the_same_table_may_stand_in_the_scenario_itself(name):
    path = FLEETS / f"{name}.yaml"
    inline = plugin("cluster.routers", Choice("llm_d", {"config": yaml.safe_load(path.read_text(encoding="utf-8"))}))
    assert decisions(inline) == decisions(plugin("cluster.routers", Choice("llm_d", {"config": str(path)})))


@pytest.mark.parametrize("config, problem", [
    (3, "config: expected the path of a YAML file or a table, not 3"),
    ({"kind": "EndpointPickerConfig"}, "config: apiVersion: expected"),
    ({"kind": "Deployment"}, "config: kind: expected EndpointPickerConfig, not 'Deployment'"),
])
def test_a_table_that_is_none_is_refused_by_its_key(config, problem):
    with pytest.raises(ConfigError, match=problem):
        plugin("cluster.routers", Choice("llm_d", {"config": config}))


def test_a_guide_with_two_indexes_of_prefixes(tmp_path):
    made = picker(tmp_path, TIERED)
    assert len(made.producers) == 2 and [weight for weight, _ in made.profiles["default"].scorers] == [2, 2, 1, 1]
    assert decisions(made)


def test_a_guide_with_kv_events_has_one_profile_of_all_its_scorers_and_signals(tmp_path):
    made = picker(tmp_path, PRECISE)
    assert made.signals == ("kv_events",)
    assert [weight for weight, _ in made.profiles["default"].scorers] == [1.0, 1.0]


def test_a_guide_that_splits_chooses_pairs(tmp_path):
    made = picker(tmp_path, DISAGGREGATED, splits=True)
    sides = ([View(0, 0, 0, role="prefill", waiting=3), View(1, 0, 0, role="prefill")],
             [View(2, 0, 0, role="decode"), View(3, 0, 0, role="decode")])
    request = Request(0, 0.0, 640, 10, range(10), 64)
    prefill, decode = made.choose_pair(request, *sides, 0.0)
    assert prefill.number == 1 and decode.number in (2, 3)
    other = made.choose_pair(Request(1, 0.0, 64, 10), *sides, 0.0)[1].number
    assert {decode.number, other} == {2, 3}  # by active-request-scorer
    made.on_first_token(request, prefill.number, 1.0)  # gone from the engine that prefilled it
    loads = made.producers[-1]
    assert loads._requests[1] == 1 and loads._requests[decode.number] == 1


def test_a_part_of_one_s_own(tmp_path, monkeypatch):
    (tmp_path / "my_parts.py").write_text(dedent("""\
        from attrs import frozen

        @frozen
        class Last:
            size_of: float = 1.0

            def score(self, cycle, engines):
                return [7.0 * (engine is engines[-1]) for engine in engines]
        """))
    monkeypatch.syspath_prepend(tmp_path)
    router = plugin("cluster.routers", Choice("llm_d", {"scorers": {"my_parts:Last": 2.0}}))
    assert {*decisions(router)} == {4} and router.scores[-1] == 2.0  # cut to 1


@pytest.mark.parametrize("text, words", [
    (HEAD + "plugins:\n- type: [\n", ["epp.yaml:5", "not valid YAML"]),
    (HEAD + "plugins: []\nplugins: []\n", ["epp.yaml:4", "'plugins' is there twice"]),
    ("- 1\n", ["no table"]),
    ("kind: Deployment\n", ["kind", "EndpointPickerConfig", "'Deployment'"]),
    ("kind: EndpointPickerConfig\napiVersion: v2\n", ["apiVersion", "llm-d.ai/v1alpha1", "'v2'"]),
    (HEAD + "plugin: []\n", ["plugin", "did you mean 'plugins'"]),
    (HEAD + "plugins: {a: 1}\n", ["plugins", "a list"]),
    (HEAD + "plugins: [queue-scorer]\n", ["plugins[0]", "table"]),
    (HEAD + "plugins: [{type: queue-scorer}, {type: queue-scorer}]\n", ["'queue-scorer' is there twice"]),
    (HEAD + "plugins: [{type: my-scorer}]\n", ["plugins[0].type", "no plugin 'my-scorer'", "scorers:", "queue-scorer"]),
    (HEAD + "plugins: [{type: slo-headroom-tier-filter}]\n", ["is not simulated", "prefix-cache-affinity-filter"]),
    (HEAD + "plugins: [{type: load-aware-scorer, parameters: {threshold: -1}}]\n",
     ["plugins[0].parameters", "'threshold' must be > 0"]),
    (HEAD + "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: kv}]}]\n",
     ["schedulingProfiles 'a'", "'kv'", "queue-scorer"]),
    (HEAD + "plugins: [{type: queue-scorer}]\nschedulingProfiles:\n- name: a\n  plugins: [{pluginRef: queue-scorer,"
            " weight: 0}]\n", ["schedulingProfiles 'a'", "only weights of 0"]),
    (HEAD + "schedulingProfiles: [{plugins: []}]\n", ["schedulingProfiles[0].name", "missing"]),
    (HEAD + "schedulingProfiles: [{name: a}, {name: b}]\n", ["2 schedulingProfiles", "takes one"]),
    (HEAD + "featureGates: [flowControl]\n", ["featureGates", "flow_control"]),
    (HEAD + "saturationDetector: {pluginRef: mine}\n", ["pluginRef 'mine'"]),
    (HEAD + "plugins: [{type: prefix-cache-affinity-filter, parameters: {ttftSource: latencyPredictor}}]\n",
     ["ttftSource", "latencyPredictor"]),
    (HEAD + "plugins: [{type: utilization-detector, parameters: {metricsStalenessThreshold: soon}}]\n",
     ["plugins[0].parameters", "'soon' is no duration"]),
    (DISAGGREGATED, ["disagg-profile-handler", "pair_router"]),
])
def test_what_is_wrong_in_a_file_is_named(tmp_path, text, words):
    with pytest.raises(KsimError) as caught:
        picker(tmp_path, text)
    assert "epp.yaml" in str(caught.value) and all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("text, words", [
    (HEAD, ["no disagg-profile-handler"]),
    (HEAD + "plugins: [{type: disagg-profile-handler}]\nschedulingProfiles: [{name: decode}]\n",
     ["profile 'prefill'", "decode"]),
    (DISAGGREGATED.replace("- type: always-disagg-pd-decider\n", ""), ["decider 'always-disagg-pd-decider'"]),
])
def test_what_is_wrong_in_a_file_of_a_pair_router_is_named(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        picker(tmp_path, text, splits=True)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("text, words", [("", ["regular file"]), ("dir", ["is a"])])
def test_a_file_that_is_not_there(tmp_path, text, words):
    with pytest.raises(KsimError) as caught:
        EndpointPickerConfig.read(tmp_path / "absent.yaml" if not text else tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_durations_are_kubernetes_own():
    assert [seconds(text) for text in ("200ms", "1m30s", "2h", 0.5)] == [0.2, 90.0, 7200.0, 0.5]
