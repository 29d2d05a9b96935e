"""What is remembered is what the oracle says, to the last bit, or it is not remembered."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from attrs import define, evolve, field, frozen
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.kernels.gemm import Gemm
from ksim.compute.kernels.pointwise import Pointwise
from ksim.cost.remembering import origins
from ksim.cost.remembering import remembered as module
from ksim.cost.remembering.remembered import Remembered, remembered
from ksim.foundation.units import DType
from ksim.oracles import Estimate, estimates
from ksim.oracles.measured import Measured
from ksim.simulation.lookup import gpu_of
from tests.cost.remembering.damage import cuts, damage, flips
from tests.laws.test_oracles import GPUS, bits, build, parts
from tests.properties import examples

H200 = gpu_of("h200")
KERNELS = [Gemm(rows, 4096, 512) for rows in range(1, 40)] + [Pointwise("rope", 8.0, 8.0, 0.0, n) for n in range(1, 9)]


@define
class Counting:
    """An oracle that counts what it is asked about."""

    seconds: float = 1e-5
    asked: list = field(factory=list)

    def estimates(self, kernels, gpu):
        self.asked += kernels
        return [Estimate(self.seconds * kernel.m, "memory", source="counting") for kernel in kernels]

    def basis(self, gpu):
        return (self.seconds.hex().encode(),)


def answers(oracle, folder, kernels=KERNELS, gpu=H200) -> list[tuple]:
    """All bits of what is said of *kernels*, in two questions."""
    asked = remembered(oracle, folder)
    half = len(kernels) // 2
    found = [*asked.estimates(kernels[:half], gpu), *asked.estimates(kernels[half:], gpu)]
    asked.close()
    assert not asked.remarks
    return [bits(each) for each in found]


@cache
def plainly() -> list[tuple]:
    return [bits(each) for each in estimates(build("measured"), KERNELS, H200)]


def test_the_second_run_asks_nothing(tmp_path):
    first, second = Counting(), Counting()
    assert answers(first, tmp_path, KERNELS[:30]) == answers(second, tmp_path, KERNELS[:30][::-1])[::-1]
    assert (len(first.asked), len(second.asked)) == (30, 0)


def test_only_what_is_new_is_asked_about_and_in_one_question(tmp_path):
    answers(Counting(), tmp_path, KERNELS[:10])
    oracle = Counting()
    asked = remembered(oracle, tmp_path)
    assert [each.seconds for each in asked.estimates(KERNELS[5:15], H200)] == [1e-5 * rows for rows in range(6, 16)]
    assert oracle.asked == KERNELS[10:15]
    asked.estimates(KERNELS[10:15], H200)  # before they are written
    assert oracle.asked == KERNELS[10:15]
    asked.close()


@pytest.mark.parametrize("name", ["measured", "learned"])
@given(data=st.data())
@examples(25)
def test_answers_are_those_of_the_oracle_whatever_is_known(tmp_path_factory, name, data):
    kernels = data.draw(st.lists(parts(GPUS["h200"]), min_size=1, max_size=12))
    known = data.draw(st.lists(st.sampled_from(kernels)))
    folder = tmp_path_factory.mktemp("known")
    if known:
        answers(build(name), folder, known)
    assert answers(build(name), folder, kernels) == [bits(each) for each in estimates(build(name), kernels, H200)]


@given(flips, cuts)
@examples(60)
def test_answers_are_those_of_the_oracle_whatever_happens_to_the_file(tmp_path_factory, flipped, cut):
    folder = tmp_path_factory.mktemp("damaged")
    answers(build("measured"), folder)
    damage(folder, flipped, cut)
    for _ in range(2):
        assert answers(build("measured"), folder) == plainly()


def test_what_prices_follow_from_tells_them_apart(tmp_path):
    """Another number of the GPU's or the oracle's is another price, and so is another field of the kernel."""
    kernel = Gemm(8, 4096, 512)
    others = [(Counting(2e-5), H200, kernel), (Counting(), evolve(H200, sms=100), kernel),
              (Counting(), evolve(H200, power=evolve(H200.power, idle=1.0)), kernel),
              (Counting(), evolve(H200, flops={**H200.flops, DType.BF16: 1e15}), kernel),
              (Counting(), H200, evolve(kernel, weights=DType.FP8)), (Counting(), H200, evolve(kernel, k=513))]
    answers(Counting(), tmp_path, [kernel])
    for oracle, gpu, other in others:
        answers(oracle, tmp_path, [other], gpu)
        assert oracle.asked == [other]


def test_another_profile_is_another_origin(tmp_path):
    from ksim.oracles.efficiency.estimates import shipped

    other = tmp_path / "other.npz"
    other.write_bytes(shipped("h200").read_bytes() + b" ")
    asked = [origins.of_oracle(oracle, H200) for oracle in (Measured(), Measured(shipped("h200")), Measured(other))]
    assert asked[0] == asked[1] != asked[2]


def test_what_does_not_say_what_it_follows_from_is_not_remembered(tmp_path):
    @frozen
    class Other(Counting):
        """One's own, which says something else and has not thought of it."""

        def estimates(self, kernels, gpu):
            return [Estimate(1.0, "memory", source="other") for _ in kernels]

    assert remembered(Other(), tmp_path) is None
    assert remembered(build("waves"), tmp_path) is None
    assert remembered(Counting(), None) is None
    assert isinstance(remembered(Counting(), tmp_path), Remembered)


def test_all_code_that_has_a_part_in_prices_is_looked_at():
    listed = "import sys, ksim.oracles.measured\n" \
             "print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('ksim.')))"
    found = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True).stdout.split()
    package_files = {path.parent / "__init__.py" for path in origins.sources()}
    missing = {Path(each) for each in found} - {*origins.sources()} - package_files
    assert {path for path in missing if path.stat().st_size > 200} == set()


def test_code_of_ones_own_and_another_arithmetic_are_other_files(monkeypatch, tmp_path):
    before = origins.code()
    origins.code.cache_clear()
    assert origins.code() == before
    (tmp_path / "one.py").write_text("1")
    for change in (lambda: monkeypatch.setattr(origins, "sources", lambda: [tmp_path / "one.py"]),
                   lambda: monkeypatch.setattr(origins, "_arithmetic", lambda: b"another")):
        change()
        origins.code.cache_clear()
        assert origins.code() != before
        before = origins.code()
    monkeypatch.undo()
    origins.code.cache_clear()


def test_where_the_code_is_in_no_files_nothing_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(origins, "sources", list)
    origins.code.cache_clear()
    asked = remembered(Counting(), tmp_path)
    assert asked.estimates(KERNELS[:1], H200)[0].seconds == 1e-5
    assert asked.remarks == ("prices are not kept: ksim's modules are no files",)
    monkeypatch.undo()
    origins.code.cache_clear()


def test_without_sqlite_nothing_is_kept(monkeypatch, tmp_path):
    for name in ("sqlite3", "ksim.cost.remembering.book"):
        monkeypatch.setitem(sys.modules, name, None)
    asked = remembered(Counting(), tmp_path)
    assert asked.estimates(KERNELS[:1], H200)[0].seconds == 1e-5
    assert asked.remarks[0].startswith("prices are not kept: ")


def test_answers_are_written_while_a_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HELD", 10)
    asked = remembered(Counting(), tmp_path)
    asked.estimates(KERNELS[:30], H200)
    second = Counting()
    answers(second, tmp_path, KERNELS[:30])
    assert not second.asked


def test_where_nothing_can_be_kept_the_oracle_answers(tmp_path):
    (tmp_path / "file").touch()
    asked = remembered(build("measured"), tmp_path / "file" / "folder")
    assert [bits(each) for each in asked.estimates(KERNELS, H200)] == plainly()
    asked.close()
    (remark,) = asked.remarks
    assert "prices are not kept in" in remark
