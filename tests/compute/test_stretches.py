"""What a mixture launches over a rank's own tokens is worked out apart from what depends on where tokens are sent."""

from functools import cache
from itertools import chain

import pytest
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.expert_rows import Mixture, average_rank, fullest_rank
from ksim.compute.graph import BatchDependent, Collective, Op
from ksim.compute.kernels.basic import GroupedGemm
from ksim.compute.model import UNKNOWN, routed
from ksim.compute.sizes import Sizes
from ksim.cost.step import StepTimer
from ksim.foundation.units import DType
from ksim.scenario.defaults import Deployment
from ksim.scenario.scenario import Scenario
from tests.properties import examples
from tests.scenario.tables import TABLE

MIXTURES: list[tuple[str, dict[str, object]]] = [
    ("qwen3-30b-a3b", {"data_parallel_size": 4}), ("deepseek-v2-lite", {"tensor_parallel_size": 2}),
    ("deepseek-v3", {"data_parallel_size": 8, "enable_expert_parallel": True, "all2all_backend": "deepep_low_latency"}),
    ("gpt-oss-20b", {"data_parallel_size": 2, "tensor_parallel_size": 2, "enable_expert_parallel": True})]


@cache
def timer(model: str, serve: tuple[tuple[str, object], ...]) -> StepTimer:
    return Deployment.of(Scenario.of({**TABLE, "model": model, "gpu": "h200", "serve": {
        "max_model_len": 8192, **dict(serve)}})).timers()[0]


def launches(model, shard, tokens: int, everywhere: int) -> list[Op]:
    """Those of all layers, every operation once for the fullest rank and once for the average one."""
    decoder, ops = model.decoder, []
    sizes = Sizes({**decoder.sizes, "t": tokens, "T": everywhere, "top_k": decoder.top_k, "groups": decoder.groups[0],
                   "chosen": decoder.groups[1]})
    for layer in shard.share(model.layers):
        mixture = Mixture(decoder.top_k, decoder.sizes["E"], shard.routing.at(layer), shard.expert_groups,
                          shard.placement)
        full, mean = ([op for operation in decoder.layers[layer] for op in operation.lower(
            routed(sizes, rows(everywhere, mixture)), shard)] for rows in (fullest_rank, average_rank))
        for op, other in zip(full, mean, strict=True):
            alike = op == other or mixture.ranks == 1 or isinstance(other.kernel, BatchDependent | Collective)
            ops.append(op if alike else evolve(op, mean=other.kernel))
    return ops


@pytest.mark.parametrize("model, serve", MIXTURES)
@given(tokens=st.integers(1, 9000), others=st.integers(0, 9000))
@examples(12)
def test_all_launches_are_those_of_every_operation_by_itself(model, serve, tokens, others):
    made = timer(model, tuple(serve.items()))
    blocks = made._plans._body(tokens, tokens + others)
    found = chain.from_iterable(block.ops * block.repeat for block in blocks[1:-1])
    assert [*found] == launches(made.model, made.shard, tokens, tokens + others)


@pytest.mark.parametrize("model, serve", MIXTURES)
def test_most_of_a_mixture_goes_over_a_ranks_own_tokens(model, serve):
    """Attention at least, of whose launches many are known for any number of tokens."""
    made = timer(model, tuple(serve.items()))
    own = [op for block in made.model.own(100, made.shard) for op in block.ops]
    assert {"o_proj", "attention_norm"} <= {op.label for op in own}
    assert not any(isinstance(op.kernel, GroupedGemm) for op in own)


@frozen
class Asks:
    """An operation that wants to know how many rows its experts have, and nothing else."""

    label: str = "asks"

    def lower(self, sizes, shard):
        yield Op(self.label, GroupedGemm(sizes.expert_rows, 8, 8, 1, DType.BF16, DType.BF16, 1))


def test_who_asks_for_the_rows_of_experts_is_told_those_of_each_step():
    made = timer(*(MIXTURES[0][0], tuple(MIXTURES[0][1].items())))
    model = evolve(made.model, decoder=evolve(made.model.decoder, layers=[
        (*layer, Asks()) for layer in made.model.decoder.layers]))
    rows = [op.kernel.expert_rows for block in model.body(50, made.shard, 300) for op in block.ops
            if op.label in ("asks", "experts_down")]
    assert len(set(rows)) == 1 and UNKNOWN is not rows[0]
