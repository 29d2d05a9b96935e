"""Command lines of engines that cut steps into two micro-batches."""

import pytest

from ksim.foundation.errors import ConfigError
from tests.deploy.launching import launched, served, table_of

VLLM = ("-dp", "8", "-ep", "--all2all-backend", "deepep_low_latency", "--enable-dbo")
SGLANG = ("python -m sglang.launch_server --model deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention"
          " --enable-two-batch-overlap")


def test_vllms_flags_are_settings_of_the_same_name():
    serve = served(*VLLM, "--dbo-decode-token-threshold", "8", "--dbo-prefill-token-threshold", "1024")
    assert serve["enable_dbo"] and serve["dbo_decode_token_threshold"] == 8
    assert serve["dbo_prefill_token_threshold"] == 1024


def test_an_environment_variable_says_how_many_sms_all_to_alls_have():
    line = "VLLM_DBO_COMM_SMS={} vllm serve deepseek-ai/DeepSeek-V3 -dp 8 -ep --all2all-backend deepep_high_throughput"
    serve = table_of(f"{line.format(12)} --enable-dbo")["serve"]
    assert serve["enable_dbo"] and serve["dbo_comm_sms"] == 12
    assert "dbo_comm_sms" not in table_of(line.format(12))["serve"]
    with pytest.raises(ConfigError, match="VLLM_DBO_COMM_SMS=many is no number of SMs"):
        table_of(f"{line.format('many')} --enable-dbo")


def test_sglang_cuts_any_step_of_two_tokens():
    serve = table_of(f"{SGLANG} --moe-a2a-backend deepep --tbo-token-distribution-threshold 0.4")["serve"]
    assert serve["enable_dbo"] and serve["all2all_backend"] == "deepep_high_throughput"
    assert serve["dbo_decode_token_threshold"] == serve["dbo_prefill_token_threshold"] == 2
    with pytest.raises(ConfigError, match="enable_dbo needs"):
        table_of(SGLANG)


def test_an_older_flag_of_vllms_means_the_same():
    assert launched("vllm", "serve", "deepseek-ai/DeepSeek-V3", *VLLM[:-1], "--enable-microbatching").serve[
        "enable_dbo"]
