from ksim.flow.log import Log
from ksim.results.numbers import LatencyTargets
from ksim.views.result import Result
from tests.results import by_hand

# As vLLM prints it: labels padded to 40, values to 10.
EXPECTED = """\
============ Serving Benchmark Result ============
Successful requests:                     2         
Failed requests:                         1         
Maximum request concurrency:             8         
Request rate configured (RPS):           0.50      
Benchmark duration (s):                  4.50      
Total input tokens:                      30        
Total generated tokens:                  4         
Request throughput (req/s):              0.44      
Request goodput (req/s):                 0.44      
Output token throughput (tok/s):         0.89      
Peak output token throughput (tok/s):    2.00      
Peak concurrent requests:                2.00      
Total token throughput (tok/s):          7.56      
---------------Time to First Token----------------
Mean TTFT (ms):                          1187.50   
Median TTFT (ms):                        1187.50   
P99 TTFT (ms):                           1248.75   
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          1125.00   
Median TPOT (ms):                        1125.00   
P99 TPOT (ms):                           1125.00   
---------------Inter-token Latency----------------
Mean ITL (ms):                           1125.00   
Median ITL (ms):                         1125.00   
P99 ITL (ms):                            1247.50   
----------------End-to-end Latency----------------
Mean E2EL (ms):                          2312.50   
Median E2EL (ms):                        2312.50   
P99 E2EL (ms):                           3476.25   
=================================================="""


def test_the_block_is_vllms():
    result = Result(by_hand.small(), {"request_rate": 0.5, "max_concurrency": 8}, LatencyTargets(ttft=2.0))
    assert result.vllm_block() == EXPECTED


def test_sections_not_asked_for_are_not_printed():
    block = Result(by_hand.small(), {"request_rate": float("inf")}).vllm_block()
    assert "goodput" not in block and "RPS" not in block and "concurrency:" not in block


def test_an_empty_run_has_a_block():
    assert "Successful requests:                     0" in Result(Log()).vllm_block()
