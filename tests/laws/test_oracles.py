"""Whatever the oracle: positive, not faster than the hardware, more work takes no less, and the same answer twice."""

import math
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from attrs import astuple, evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from ksim.compute.graph import Collective
from ksim.compute.kernels import Kernel
from ksim.compute.kernels.attention import AttentionLayer
from ksim.compute.kernels.basic import Gemm, GroupedGemm, Pointwise
from ksim.cost.affine import COLUMNAR, AffineBlocks, AffineKernel, AffineSweep, affine_sweeps
from ksim.cost.energy import actions
from ksim.flow.batch import Batch
from ksim.flow.events import Stepped
from ksim.foundation import catalog
from ksim.foundation.catalog import plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError
from ksim.foundation.units import DType
from ksim.oracles import Estimate, bounds, estimate, estimates
from ksim.oracles.efficiency.profiled import shipped
from ksim.scenario.defaults import Deployment
from ksim.scenario.hardware import gpu_of
from ksim.scenario.models import model_of
from ksim.scenario.scenario import Scenario
from ksim.simulation.simulate import simulate
from ksim.specs.hardware import Gpu
from ksim.specs.shard import Shard
from tests.laws.kernels import shapes
from tests.properties import examples
from tests.scenario.tables import TABLE

NAMES = catalog.names("oracles")
#: Oracles that say what was measured: libraries change kernels from one shape to the next, so that a larger one may
#: be faster, and kernels that only move memory may find it in the L2 cache.
MEASURED = {"learned", "measured"}
GPUS = {name: gpu_of(name) for name in catalog.entries("gpus")}
#: The GPUs that an oracle knows, if not all.
KNOWN = {"measured": [name for name in GPUS if shipped(name).exists()]}


@cache
def build(name: str) -> Any:
    """The oracle with its defaults."""
    return plugin("oracles", Choice(name))


def gpus(name: str) -> st.SearchStrategy[Gpu]:
    return st.sampled_from([GPUS[gpu] for gpu in KNOWN.get(name, GPUS)])


@st.composite
def launches(draw, name: str) -> tuple[Kernel, Gpu]:
    """A kernel of any family that does something, and a GPU that has its number format and that the oracle knows."""
    kernel = draw(st.sampled_from(catalog.names("compute.kernels")).flatmap(shapes))
    gpu = draw(gpus(name))
    assume(kernel.work.dtype in gpu.flops and kernel.work.bytes >= 1)
    return kernel, gpu


#: Kernels that move memory, as steps have them: of these, several kinds are priced together.
memory = st.builds(lambda family, rows, width, written: Pointwise(family, rows * width, rows * written, 0.0, rows),
                   st.sampled_from(["rms_norm", "fused_add_rms_norm", "silu_mul", "rope", "kv_write", "argmax", "copy",
                                    "moe_combine", "quantize", "of one's own"]),
                   st.integers(1, 9000), st.floats(2, 60_000), st.floats(2, 60_000))
formats = st.sampled_from([*DType])
products = st.builds(Gemm, *(3 * [st.integers(1, 12_000)]), formats, formats)


def parts(gpu: Gpu) -> st.SearchStrategy[Kernel]:
    """Kernels of any family but attention that do something in a format of *gpu*."""
    families = st.sampled_from([name for name in catalog.names("compute.kernels") if name != "attention"])
    return (families.flatmap(shapes) | memory | products).filter(
        lambda kernel: kernel.work.dtype in gpu.flops and kernel.work.bytes >= 1)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@examples(100)
def test_every_time_is_positive_and_finite(name, data):
    found = estimate(build(name), *data.draw(launches(name)))
    assert 0 < found.seconds < math.inf
    assert math.isnan(found.low) or 0 < found.low <= found.seconds <= found.high < math.inf
    assert found.bound in ("compute", "memory", "launch")
    assert found.source


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@examples(100)
def test_no_time_is_below_what_the_hardware_allows(name, data):
    """By its peaks: an oracle gives reasons why a kernel takes longer.  Why one takes less has one reason, that what
    the kernel before it left in the L2 cache need not be read."""
    kernel, gpu = data.draw(launches(name))
    assert estimate(build(name), kernel, gpu).seconds >= floor(name, kernel, gpu) * (1 - 1e-9)


def floor(name: str, kernel: Kernel, gpu: Gpu) -> float:
    """The least seconds that there is a reason for."""
    if name not in MEASURED or not isinstance(kernel, Pointwise):
        return max(bounds(kernel, gpu))
    return max(kernel.cold_bytes, max(kernel.read_bytes, kernel.write_bytes) - gpu.l2) / gpu.bandwidth


@pytest.mark.parametrize(("name", "gpu"), [(name, gpu) for name in NAMES for gpu in KNOWN.get(name, GPUS)])
def test_no_kernel_of_a_step_is_below_what_the_hardware_allows(name, gpu):
    """On every GPU of the catalogue, of steps small and large, with and without experts and latent attention."""
    oracle = build(name)
    for model in ("llama-3.1-8b", "qwen3-30b-a3b"):
        for batch in (Batch.of((1, 10)), Batch.of(*[(1, 2000)] * 256), Batch.of((8192, 0))):
            graph = model_of(model).graph(batch.tokens, batch.samples, Shard())
            kernels = [kernel for _, kernel in graph.over(batch) if not isinstance(kernel, Collective)]
            kernels = list(dict.fromkeys(kernels))
            for kernel, found in zip(kernels, estimates(oracle, kernels, GPUS[gpu]), strict=True):
                assert found.seconds >= floor(name, kernel, GPUS[gpu]) * (1 - 1e-9), kernel


@pytest.mark.parametrize("gpu", GPUS)
def test_rows_of_an_embedding_come_from_memory(gpu):
    """A table of a gigabyte is in no cache: 2,048 rows of 8 KiB take an L4 55 us."""
    (_, kernel), *_ = model_of("llama-3.1-8b").graph(2048, 1, Shard()).over(Batch.of((2048, 0)))
    assert kernel.family == "embedding"
    assert estimate(build("learned"), kernel, GPUS[gpu]).seconds >= 2048 * 8192 / GPUS[gpu].bandwidth
    assert actions(kernel, 1e-4, GPUS[gpu]).hbm >= 2048 * 8192


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@examples(30)
def test_an_answer_depends_on_the_question_alone(name, data):
    """Not on what was asked before, nor on whom."""
    asked = data.draw(st.lists(launches(name), min_size=2, max_size=5))
    answers = [estimate(build(name), *launch) for launch in asked]
    build.cache_clear()
    assert [estimate(build(name), *launch) for launch in reversed(asked)] == answers[::-1]


def bits(found: Estimate) -> tuple[Any, ...]:
    """All that is said, where nan is equal to itself and 0 is not -0."""
    return tuple(value.hex() if isinstance(value, float) else value for value in astuple(found))


@pytest.mark.parametrize("name, gpu", [(name, gpu) for name in NAMES for gpu in KNOWN.get(name, ("h200", "l40s"))])
@given(data=st.data())
@examples(12)
def test_company_changes_no_bit_of_an_answer(name, gpu, data):
    """So that it makes no difference which kernels are asked about together, and which have a price already."""
    kernels = data.draw(st.lists(parts(GPUS[gpu]), min_size=2, max_size=14))
    together = [bits(each) for each in estimates(build(name), kernels, GPUS[gpu])]
    some = data.draw(st.permutations(range(len(kernels))).flatmap(
        lambda order: st.integers(1, len(order)).map(lambda count: order[:count])))
    among = estimates(build(name), [kernels[place] for place in some], GPUS[gpu])
    assert [bits(each) for each in among] == [together[place] for place in some]
    place = data.draw(st.integers(0, len(kernels) - 1))
    assert bits(estimate(build(name), kernels[place], GPUS[gpu])) == together[place]


@cache
def growing(model: str) -> list[AffineSweep]:
    """The kernels of a model's body whose sizes grow with its tokens, those of one kind together."""
    blocks = AffineBlocks.of(lambda tokens: model_of(model).body(tokens, Shard())).blocks
    return affine_sweeps(enumerate(
        op for ops, _ in blocks for op in ops if isinstance(op, AffineKernel) and op.kind in COLUMNAR))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-2-2b"])
@given(tokens=st.lists(st.integers(1, 20_000), min_size=1, max_size=6))
@examples(8)
def test_a_sweep_changes_no_bit_of_an_answer(name, model, tokens):
    """Kernels priced as columns have the prices that they have one by one."""
    for group in growing(model):
        sweep = group.at(np.array(tokens))
        alone = [estimate(build(name), kernel, GPUS["h200"]) for kernel in sweep]
        assert [bits(answer) for answer in estimates(build(name), sweep, GPUS["h200"])] == [*map(bits, alone)]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@examples(30)
def test_attention_asked_about_together_takes_as_long_as_apart(name, data):
    """Few are worked out one by one, in the arithmetic of single numbers."""
    gpu = data.draw(gpus(name))
    kernels = data.draw(st.lists(shapes("attention").filter(lambda kernel: kernel.work.dtype in gpu.flops),
                                 min_size=2, max_size=14))
    for kernel, found in zip(kernels, estimates(build(name), kernels, gpu), strict=True):
        alone = estimate(build(name), kernel, gpu)
        assert (found.launch, found.source) == (alone.launch, alone.source)
        assert found.seconds == pytest.approx(alone.seconds, rel=1e-9)


counts = st.integers(1, 12_000)
extra = st.integers(1, 5000)
gemms = st.builds(Gemm, counts, counts, counts)
loads = st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 64)), min_size=1, max_size=4).map(tuple)
grouped = st.builds(GroupedGemm, loads, counts, counts, counts)
moved = st.floats(1, 1e10)
pointwise = st.builds(Pointwise, st.sampled_from(["rope", "silu_mul"]), moved, moved, st.just(0.0),
                      st.integers(1, 9000))
layers = st.builds(lambda kv, group, dim, window: AttentionLayer(kv * group, kv, dim, window), st.integers(1, 16),
                   st.integers(1, 16), st.sampled_from([64, 128]), st.sampled_from([0, 128, 4096]))
sequences = st.tuples(st.integers(1, 2000), st.integers(0, 9000))
batches = st.lists(sequences, min_size=1, max_size=12)


def longer(layer: AttentionLayer, batch: list[tuple[int, int]], new: int, context: int) -> tuple[Kernel, Kernel]:
    """Attention of *batch*, and with so many more tokens of its first sequence."""
    first, *others = batch
    return layer.over(Batch.of(*batch)), layer.over(Batch.of((first[0] + new, first[1] + context), *others))


#: What can be more of a kernel: pairs of a kernel and one that does the same and more.
GROWTH: dict[str, st.SearchStrategy[tuple[Kernel, Kernel]]] = {
    "rows": st.builds(lambda kernel, more: (kernel, evolve(kernel, m=kernel.m + more)), gemms, extra),
    "columns": st.builds(lambda kernel, more: (kernel, evolve(kernel, n=kernel.n + more)), gemms | grouped, extra),
    "rows of an expert": st.builds(lambda kernel, rest, more: (
        evolve(kernel, expert_rows=((more, 3), *rest)), evolve(kernel, expert_rows=((2 * more, 3), *rest))),
        grouped, loads, extra),
    "bytes": st.builds(lambda kernel, more: (
        kernel, evolve(kernel, read_bytes=kernel.read_bytes + more)), pointwise, extra),
    "context": st.builds(longer, layers, batches, st.just(0), extra),
    "new tokens": st.builds(longer, layers, batches, extra, st.just(0)),
}


@pytest.mark.parametrize("name", sorted({*NAMES} - MEASURED))
@pytest.mark.parametrize("what", GROWTH)
@given(data=st.data(), gpu=st.sampled_from([*GPUS.values()]))
@examples(30)
def test_more_work_never_takes_less(name, what, data, gpu):
    less, more = data.draw(GROWTH[what])
    oracle = build(name)
    assert estimate(oracle, more, gpu).seconds >= estimate(oracle, less, gpu).seconds * (1 - 1e-9)


@pytest.mark.parametrize("name", sorted({*NAMES} - MEASURED))
@given(kernel=gemms, more=extra, gpu=st.sampled_from([*GPUS.values()]))
@examples(60)
def test_a_deeper_product_takes_less_by_a_seventh_at_most(name, kernel, more, gpu):
    """Less, because another split of the contracted dimension becomes worth while."""
    deeper = evolve(kernel, k=kernel.k + more)
    assert estimate(build(name), deeper, gpu).seconds >= 6 / 7 * estimate(build(name), kernel, gpu).seconds


@pytest.mark.parametrize("name", sorted({*NAMES} - MEASURED))
@given(layer=layers, batch=batches, one=sequences, gpu=st.sampled_from([*GPUS.values()]))
@examples(60)
def test_one_sequence_more_takes_less_by_one_wave_at_most(name, layer, batch, one, gpu):
    """Less, because unequal blocks are balanced over the SMs, while equal ones come in whole waves."""
    less, more = layer.over(Batch.of(*batch)), layer.over(Batch.of(*batch, one))
    before = estimate(build(name), less, gpu)
    wave = before.seconds / math.ceil(before.waves) if before.waves else 0.0
    assert estimate(build(name), more, gpu).seconds >= (before.seconds - wave) * (1 - 1e-9)


#: The same, done four times over in one launch.
SCALED: dict[str, st.SearchStrategy[tuple[Kernel, Kernel]]] = {
    "product": st.builds(lambda kernel: (kernel, evolve(kernel, m=4 * kernel.m, n=4 * kernel.n)), gemms),
    "bytes": st.builds(lambda kernel: (kernel, evolve(kernel, read_bytes=4 * kernel.read_bytes, rows=4 * kernel.rows,
                                                      write_bytes=4 * kernel.write_bytes)), pointwise),
    "sequences": st.builds(lambda layer, batch: (layer.over(Batch.of(*batch)), layer.over(Batch.of(*4 * batch))),
                           layers, batches),
}


@pytest.mark.parametrize("name", sorted(MEASURED))
@pytest.mark.parametrize("what", SCALED)
@given(data=st.data())
@examples(40)
def test_several_times_the_work_takes_no_less(name, what, data):
    """What was measured is no straight line, but it rises: a fifth less at most, where another kernel takes over."""
    less, more = data.draw(SCALED[what])
    gpu = data.draw(gpus(name))
    assert estimate(build(name), more, gpu).seconds >= 0.8 * estimate(build(name), less, gpu).seconds


# One's own.

OWN = """
from attrs import frozen

@frozen
class Constant:
    each: float = 1e-5

    def seconds(self, kernel, gpu):
        return self.each
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package called `mine` with one module, `oracles`."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "__init__.py").touch()
        (tmp_path / "mine" / "oracles.py").write_text(source)

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


def scenario(oracle: Any) -> Scenario:
    return Scenario.of({**TABLE, "model": "llama-3.2-1b", "oracle": oracle})


def test_ones_own_oracle_prices_steps(package):
    package(OWN)
    timer = Deployment.of(scenario({"name": "mine.oracles:Constant", "each": 2e-5})).timers()[0]
    kernels = [span for span in timer.step_cost(Batch.of((1, 100))) if span.source != "host"]
    assert {span.seconds for span in kernels} == {2e-5}
    assert {span.source for span in kernels} == {"Constant"}
    assert {span.bound for span in kernels} == {"memory"}  # by the roofline


def test_ones_own_oracle_runs_a_scenario(package):
    """Every step has as many kernels as another, which take as long, but for what the host adds and its launches."""
    package(OWN)
    result = simulate(scenario("mine.oracles:Constant"))
    steps = list(result.log.of(Stepped))
    assert len(steps) == 10 + 2  # 100 prompts of 100 tokens take more than one step of 8,192, and come one by one
    kernels = sum(span.source != "host" for span in steps[0].step_costs[0])
    for step in steps:
        (timeline,) = step.step_costs
        host = sum(span.seconds for span in timeline if span.source == "host")
        assert timeline.seconds == pytest.approx(kernels * 1e-5 + host)
        assert step.end - step.start == pytest.approx(max(timeline.seconds, timeline.launch_seconds))


@pytest.mark.parametrize("answer", ["float('nan')", "float('inf')", "0", "-1e-6", "None", "'fast'"])
def test_an_answer_that_is_no_time_names_the_oracle_and_the_kernel(package, answer):
    package(OWN.replace("self.each", answer))
    with pytest.raises(ConfigError, match=r"oracle Constant: says \S+ s for \S+ .+; expected a positive number"):
        simulate(scenario("mine.oracles:Constant"))


@pytest.mark.parametrize("source, name, problem", [
    ("1 / 0", "Constant", "mine.oracles:Constant: cannot be imported: ZeroDivisionError: division by zero"),
    ("import nowhere", "Constant", "mine.oracles:Constant: cannot be imported: ModuleNotFoundError: No module"),
    (OWN, "Constand", "mine.oracles:Constand: module mine.oracles has no Constand"),
    (OWN.replace("def seconds", "def second"), "Constant",
     "mine.oracles:Constant: has none of estimates, seconds, estimate, so it is no oracle"),
    (OWN.replace("def seconds", "def estimate"), "Constant",
     "oracle Constant: estimates 1e-05, which is no ksim.oracles.Estimate"),
])
def test_an_oracle_that_cannot_be_used_says_why(package, source, name, problem):
    package(source)
    with pytest.raises(ConfigError) as error:
        simulate(scenario(f"mine.oracles:{name}"))
    assert str(error.value).startswith(problem)


def test_an_option_that_ones_own_oracle_lacks_is_named(package):
    package(OWN)
    with pytest.raises(ConfigError, match="mine.oracles:Constant: eech: unknown key; did you mean 'each'"):
        Deployment.of(scenario({"name": "mine.oracles:Constant", "eech": 1}))
