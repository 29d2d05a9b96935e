"""How a model is divided over GPUs, and what an engine's settings mean."""

import pytest

from ksim.foundation.config import structure
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.specs.settings import EngineSettings, Slo
from ksim.specs.shard import Placement, Precision, Shard

#: Whole experts on four ranks.
DEALT = {"data_parallel_size": 4, "enable_expert_parallel": True}
EXCHANGED = {"enable_expert_parallel": True, "data_parallel_size": 2, "all2all_backend": "deepep_low_latency"}


@pytest.mark.parametrize("layers, stages, sizes", [
    (32, 1, [32]), (32, 4, [8, 8, 8, 8]),
    (80, 3, [27, 27, 26]), (61, 4, [15, 15, 16, 15]), (5, 4, [1, 1, 2, 1]),  # vLLM: not to the last, which has the head
])
def test_stages_hold_consecutive_layers(layers, stages, sizes):
    shares = [Shard(stage=stage, stages=stages).share(layers) for stage in range(stages)]
    assert [len(share) for share in shares] == sizes
    assert [i for share in shares for i in share] == list(range(layers))


def test_ends_of_a_pipeline():
    assert [(Shard(stage=i, stages=3).first, Shard(stage=i, stages=3).last) for i in range(3)] == [
        (True, False), (False, False), (False, True)]


@pytest.mark.parametrize("settings, precision", [
    ({}, Precision(DType.BF16, DType.BF16, DType.BF16)),
    ({"quantization": "fp8"}, Precision(DType.FP8, DType.FP8, DType.BF16)),
    ({"quantization": "nvfp4", "unquantized": ["attention"]},
     Precision(DType.NVFP4, DType.NVFP4, DType.BF16, ("attention",))),
    ({"quantization": "mxfp4"},
     Precision(DType.MXFP4, DType.BF16, DType.BF16, ("attention", "mlp", "shared_experts"))),
    ({"quantization": "fp8_w8a16", "kv_cache_dtype": "fp8"}, Precision(DType.FP8, DType.BF16, DType.FP8)),
])
def test_precision_follows_from_vllms_settings(settings, precision):
    assert EngineSettings(**settings).precision == precision


def test_gpus_of_an_engine():
    assert EngineSettings(tensor_parallel_size=4, pipeline_parallel_size=2).gpus == 8


@pytest.mark.parametrize("table, problem", [
    ({"tensor_parallel_size": 0}, "'tensor_parallel_size' must be > 0: 0"),
    ({"gpu_memory_utilization": 1.5}, "'gpu_memory_utilization' must be <= 1: 1.5"),
    ({"quantization": "fp6"}, "'quantization' must be in"),
    ({"unquantized": ["heads"]}, "'unquantized' must be some of attention, mlp, shared_experts, experts,"
                                 " attention_inputs, not 'heads'"),
    ({"all2all_backend": "naive"}, "'all2all_backend' must be in"),
    ({"all2all_backend": "deepep_low_latency", "data_parallel_size": 2}, "sends tokens to whole experts; set enable"),
    ({"enable_eplb": True}, "enable_eplb places whole experts; set enable_expert_parallel, or leave it out"),
    ({"expert_placement_strategy": "round_robin"}, "expert_placement_strategy places whole experts; set enable_exp"),
    ({"expert_placement_strategy": "random"}, "'expert_placement_strategy' must be in"),
    ({"enable_expert_parallel": True, "enable_eplb": True}, "evens out ranks, and one holds all experts; leave it out"),
    ({**DEALT, "num_redundant_experts": 8}, "num_redundant_experts = 8 are copies that EPLB makes; set enable_eplb"),
    ({**DEALT, "enable_eplb": True, "expert_placement_strategy": "round_robin"}, "leave out expert_placement_strategy"),
    ({"overlap_stages": 4, "tensor_parallel_size": 2}, "overlap_stages = 4 and overlap_sms = 0: set 2 or more"),
    ({"overlap_sms": 4, "tensor_parallel_size": 2}, "overlap_stages = 1 and overlap_sms = 4: set 2 or more"),
    ({"overlap_stages": 4, "overlap_sms": 4}, "overlap_stages = 4 needs a tensor_parallel_size of 2 or more"),
    ({"overlap_stages": 0}, "'overlap_stages' must be > 0: 0"),
    ({"enable_dbo": True}, "enable_dbo needs a data_parallel_size of 2 or more, enable_expert_parallel, and"),
    ({**EXCHANGED, "data_parallel_size": 1, "enable_dbo": True}, "enable_dbo needs a data_parallel_size of 2 or more"),
    ({**EXCHANGED, "all2all_backend": "allgather_reducescatter", "enable_dbo": True}, "or 'deepep_high_throughput'"),
    ({**EXCHANGED, "enable_dbo": True, "enable_lora": True}, "enable_lora needs all2all_backend"),
    ({**EXCHANGED, "enable_dbo": True, "overlap_stages": 2, "overlap_sms": 8, "tensor_parallel_size": 2}, "leave one"),
    ({"dbo_comm_sms": -1}, "'dbo_comm_sms' must be >= 0: -1"),
    ({"tensor_paralel_size": 2}, "tensor_paralel_size: unknown key; did you mean 'tensor_parallel_size'?"),
])
def test_impossible_engine_settings_are_refused(table, problem):
    with pytest.raises(ConfigError) as error:
        structure(EngineSettings, table, "serve")
    assert problem in str(error.value)


@pytest.mark.parametrize("settings, placement", [
    ({}, Placement()), ({"expert_placement_strategy": "round_robin"}, Placement("round_robin")),
    ({"enable_eplb": True, "num_redundant_experts": 32}, Placement("balanced", 32)),
])
def test_placement_follows_from_vllms_settings(settings, placement):
    assert EngineSettings(**DEALT, **settings).placement == placement


def test_latency_targets_are_read_with_their_units():
    slo = structure(Slo, {"ttft": "200 ms", "tpot": "0.05 s"})
    assert (slo.ttft, slo.tpot, slo.e2el) == (0.2, 0.05, None)
