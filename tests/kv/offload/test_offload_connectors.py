"""Every connector that offloads: a prompt that the GPU has lost comes back, and is not computed again."""

from typing import Any

import pytest

from ksim.flow.events import Copied
from ksim.foundation import catalog
from tests.kv.offload.runs import BLOCK, scenario
from tests.kv.transfer.fleets import run

FOLDER = "kv.offload.connectors"
#: The options that a connector needs to have room for all.
OPTIONS: dict[str, dict[str, Any]] = {
    "offloading": {"cpu_bytes_to_use": 100 * BLOCK}, "lmcache": {"lmcache.chunk_size": 32}, "mooncake_store": {},
    "hicache": {}}

#: Those of vLLM's blocks; what test_hicache_runs.py says of SGLang's tree goes by tokens.
each_connector = pytest.mark.parametrize("name", sorted({*catalog.names(FOLDER)} - {"hicache"}))


def test_each_connector_is_tried():
    assert sorted(OPTIONS) == sorted(catalog.names(FOLDER))
    aliases = [catalog.find(FOLDER, name).alias for name in catalog.names(FOLDER)]
    assert len({*aliases}) == len(aliases)


@each_connector
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_prompt_that_the_gpu_has_lost_is_loaded(model, tmp_path, name, ranks):
    names = "|".join(map(str, range(9)))
    (tmp_path / "t.csv").write_text("arrival,prompt,output,hash_ids\n" + "".join(
        f"{arrival},130,4,{names}\n" for arrival in (0, 1)))
    table = scenario(model, workload={"replay": {"path": str(tmp_path / "t.csv")}}, enable_prefix_caching=False,
                     tensor_parallel_size=ranks)
    table["serve"]["kv_transfer_config"] = {"kv_connector": catalog.find(FOLDER, name).alias,
                                            "kv_connector_extra_config": OPTIONS[name]}
    result = run(table)
    loads = [copy for copy in result.log.of(Copied) if copy.target == "gpu"]
    stores = [copy for copy in result.log.of(Copied) if copy.source == "gpu"]
    assert [(load.request_id, load.tokens) for load in loads] == [(1, 128)]
    assert loads[0].bytes == sum(store.bytes for store in stores) == 8 * BLOCK
    assert result.requests.column("cpu_tokens").to_pylist() == [0, 128]
