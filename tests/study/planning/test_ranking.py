"""How many replicas each candidate needs, by estimates."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ksim.study.planning.fleets import name_of
from ksim.study.planning.ranking import cost_of, dominates, fewest_of


@given(st.lists(st.integers(0, 600), min_size=1, max_size=6), st.integers(1, 512))
def test_the_fewest_are_found_for_all_variants_at_a_time(needed, most):
    """0 stands for a variant that no number of replicas makes carry the load."""
    asked = []

    def carries(which, counts):
        asked.append(len(which))
        return np.array([needed[row] > 0 and count >= needed[row] for row, count in zip(which, counts, strict=True)])

    found = fewest_of(carries, np.full(len(needed), most))
    assert found.tolist() == [need if 0 < need <= most else 0 for need in needed]
    assert len(asked) < 16, "numbers are halved"


COSTS = st.fixed_dictionaries({"usd": st.integers(1, 5).map(float), "joules": st.integers(1, 5).map(float)})


@given(st.lists(COSTS, min_size=1, max_size=12))
def test_the_least_product_is_on_the_front(rows):
    names = ("usd", "joules")
    least = min(rows, key=lambda costs: cost_of(costs, names))
    assert not any(dominates(other, least, names) for other in rows)
    front = [costs for costs in rows if not any(dominates(other, costs, names) for other in rows)]
    for costs in rows:
        assert costs in front or any(dominates(other, costs, names) for other in front)


def test_names_say_what_differs():
    assert name_of({"gpu": "h100", "serve.tensor_parallel_size": 4, "serve.quantization": "fp8",
                    "serve.kv_cache_dtype": "auto", "serve.max_num_batched_tokens": 2048}) == \
        "TP4, fp8, 2,048 tokens a step on h100"
    pools = {"prefill": {"role": "prefill", "replicas": 3, "serve": {"tensor_parallel_size": 2}},
             "decode": {"role": "decode", "replicas": 1, "serve": {"tensor_parallel_size": 4}}}
    assert name_of({"gpu": "h200", "pools": pools}) == "3 prefill TP2 + 1 decode TP4 on h200"
    assert name_of({"gpu": "h200", "engine": "vllm-0.22", "serve.enable_prefix_caching": False}) == \
        "vllm-0.22, enable_prefix_caching false on h200"
