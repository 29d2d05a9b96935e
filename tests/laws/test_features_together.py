"""Features of engines in pairs: each pair serves all requests, and its results add up."""

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from ksim.foundation.errors import ConfigError
from ksim.scenario.scenario import Scenario, merged
from ksim.simulation.fleet import Fleet
from ksim.simulation.simulate import play, stream
from ksim.views.result import Result
from tests.laws.happenings import facts, times
from tests.laws.small import SMALL
from tests.laws.tiny import TINY, uniform
from tests.results.partition import assert_a_partition

BASE: dict[str, Any] = {
    "gpu": "h200", "oracle": "roofline", "nodes": 1,
    "serve": {"max_model_len": 1000, "max_num_seqs": 4, "max_num_batched_tokens": 256, "num_gpu_blocks_override": 200},
    "workload": {"synthetic": {"arrivals": {"process": "poisson", "rate": 300.0}, "prompt": uniform(20, 90), "count": 3,
                               "output": uniform(4, 9), "prefixes": {"groups": 2, "tokens": 70}}}}


def serving(**settings: Any) -> dict[str, Any]:
    return {"serve": settings}


def asking(**settings: Any) -> dict[str, Any]:
    return {"workload": {"synthetic": settings}}


def drafting(method: str, **settings: Any) -> dict[str, Any]:
    return serving(speculative_config={"method": method, "num_speculative_tokens": 2, **settings,
                                       "acceptance": {"name": "geometric", "rate": 0.7}})


LORA = serving(enable_lora=True, max_loras=2, lora_target_modules=["q_proj", "o_proj"],
               lora_modules=[{"name": "adapter", "rank": 8, "count": 3}])
IMAGES = asking(images={"bucket_config": {"(224, 224, 1)": 1.0}, "pool": 3})
#: What a scenario says to use each feature; HEAD and DRAFT stand for files.
FEATURES: Mapping[str, dict[str, Any]] = {
    "ngram": drafting("ngram"), "mtp": drafting("mtp"), "eagle3": drafting("eagle3", model="HEAD"),
    "draft_model": drafting("draft_model", model="DRAFT"),
    "lora": {**LORA, **asking(adapters={"count": 3, "exponent": 0.5})}, "images": IMAGES,
    "windows": {}, "delta": {}, "mamba": {}, "seeing windows": IMAGES,
    "n": asking(n=3, max_completion_tokens=20), "logprobs": asking(prompt_logprobs=2),
    "beams": asking(beam_width=2, output=uniform(2, 3)),
    "pools": {"pools": {"prefill": {"role": "prefill"}, "decode": {"role": "decode"}}},
    "experts": serving(data_parallel_size=2, enable_expert_parallel=True), "stages": serving(pipeline_parallel_size=2),
    "sglang": serving(prefix_cache="sglang"),
    "ranks": {"detail": "rank", "ranks": {"slow": [{"gpu": 0, "speed": 0.8}]}},
    "stall_free": serving(scheduling_policy="stall_free"),
}
DRAFTERS = {"ngram", "mtp", "eagle3", "draft_model"}
#: Where it matters what drafts.
DRAFTED = {"lora", "images", "windows", "delta", "pools", "experts", "sglang", "n"}
MODELS = {"windows", "delta", "mamba", "seeing windows"}
#: With these, no engine goes ahead of the clock.
STEPPING = {"experts", "stages", "ranks"}
#: Pairs that are refused, each with the key that the error names.
REFUSED = {**{frozenset((drafter, "sglang")): "serve.prefix_cache" for drafter in DRAFTERS},
           frozenset(("n", "pools")): "workload.synthetic.n",
           frozenset(("beams", "pools")): "workload.synthetic.beam_width", frozenset(("beams", "n")): "n is 3",
           frozenset(("beams", "logprobs")): "prompt_logprobs"}


def model_of(pair: frozenset[str]) -> str:
    """The small model on which a *pair* of features can be, or "" if there is none."""
    own = pair & MODELS
    if len(own) > 1 or (own & {"mamba", "seeing windows"} and "experts" in pair) or (
            "mtp" in pair and own - {"delta"}) or ("images" in pair and (own or "mtp" in pair)):
        return ""
    seeing = "seeing " * ("images" in pair)
    return min(own, default=seeing + "experts" if pair & {"mtp", "experts"} else seeing.strip() or "dense")


def pairs() -> Iterator[frozenset[str]]:
    """All pairs but those of two drafters or two models; one drafter stands for the others where these are alike."""
    for pair in map(frozenset, combinations(FEATURES, 2)):
        if len(pair & DRAFTERS) < 2 and model_of(pair) and (not pair & DRAFTERS - {"eagle3"} or pair & DRAFTED):
            yield pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small")
    head = {**TINY, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 500}
    for name, table in {**SMALL, "HEAD": head, "DRAFT": TINY}.items():
        (path / f"{name}.json").write_text(json.dumps(table))
    return path


def fleet_of(folder: Path, pair: frozenset[str]) -> Fleet:
    table = {**BASE, "model": str(folder / f"{model_of(pair)}.json")}
    for name in sorted(pair):
        table = merged(table, FEATURES[name])
    text = json.dumps(table)
    for name in ("HEAD", "DRAFT"):
        text = text.replace(f'"{name}"', json.dumps(str(folder / f"{name}.json")))
    return Fleet.of(Scenario.of(json.loads(text)))


def played(fleet: Fleet, skips: bool) -> Result:
    """A run whose engines may go ahead of the clock or not."""
    pools = tuple(evolve(pool, deployment=evolve(pool.deployment, skips=skips)) for pool in fleet.pools)
    return play(evolve(fleet, pools=pools), fleet.scenario.workload.requests(fleet.scenario.seed))


def check(run: Result, pair: frozenset[str]) -> None:
    """All tokens came, times add up, and each feature of the *pair* was in use."""
    requests, summary = run.history.requests, run.summary
    assert requests.output.tolist() == [request.output_tokens for request in requests.requests]
    assert_a_partition(run)
    assert not pair & DRAFTERS or "beams" in pair or summary["spec_decode_num_drafts"] > 0
    assert "lora" not in pair or summary["lora_loads"] > 0
    assert not pair & {"images", "seeing windows"} or summary["images"] > 0
    assert "logprobs" not in pair or any(batch.prompt_logprobs for block in run.log.step_blocks
                                         for batch in block.batches.batches)


@pytest.mark.parametrize("pair", [*pairs()], ids=lambda pair: "+".join(sorted(pair)))
def test_pairs_of_features_work_or_are_refused(folder, pair):
    if pair in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[pair]):
            played(fleet_of(folder, pair), skips=True)
        return
    fleet = fleet_of(folder, pair)
    stepped = played(fleet, skips=False)
    check(stepped, pair)
    if not pair & STEPPING:
        ahead = played(fleet, skips=True)
        assert facts(ahead.log) == facts(stepped.log)
        assert times(ahead.log) == pytest.approx(times(stepped.log), rel=1e-9)


def test_a_streamed_run_counts_the_same(folder, tmp_path):
    pair = frozenset(("lora", "eagle3"))
    fleet = fleet_of(folder, pair)
    whole, streamed = played(fleet, skips=True).summary, stream(fleet, tmp_path / "run").summary
    keys = [key for key in whole if key.startswith(("spec_decode_num", "lora", "total_", "completed"))]
    assert len(keys) > 8 and {key: streamed[key] for key in keys} == {key: whole[key] for key in keys}
