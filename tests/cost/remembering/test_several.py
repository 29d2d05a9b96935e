"""What is remembered of kernels as columns is what the oracle says of them, whichever of their sizes are known."""

import sqlite3
from contextlib import closing
from functools import cache

import numpy as np
import pytest
from attrs import define, evolve
from hypothesis import given
from hypothesis import strategies as st

from ksim.compute.kernels.gemm import Gemm
from ksim.cost.remembering import remembered as module
from ksim.cost.remembering.origins import of_kernel, of_kinds, of_sizes
from ksim.cost.remembering.remembered import remembered
from ksim.cost.remembering.rows import sealed
from ksim.foundation.units import DType
from ksim.oracles.efficiency.answers import Estimates, several
from ksim.oracles.efficiency.several import Alike, Several, alike
from tests.cost.remembering.damage import cuts, damage, flips
from tests.cost.remembering.test_remembered import H200, Counting
from tests.laws.test_oracles import bits, build
from tests.oracles.test_several import sized
from tests.properties import examples

SIZES = [1, 7, 64, 65, 300, 4096]


@define
class Columns(Counting):
    """Has columns of products, and counts the kernels that it is asked about."""

    def several(self, kernels, gpu):
        return Estimates.of(self.estimates(kernels.each(), gpu)) if isinstance(kernels.kernel, Gemm) else None


@cache
def groups() -> list[Alike]:
    """Products, and what moves memory."""
    return sorted(alike(sized("llama-3.1-8b", 1)), key=lambda group: type(group.kinds[0]).__name__)


def products(*sizes: int) -> Several:
    return groups()[0].at(np.array(sizes))


def answers(oracle, folder, *sizes: int, gpu=H200) -> list[list[tuple]]:
    """All bits of what is said of kernels of these *sizes*."""
    asked = remembered(oracle, folder)
    found = several(asked, [group.at(np.array(sizes)) for group in groups()], gpu)
    asked.close()
    assert not asked.remarks
    return [[bits(answer) for answer in each.each()] for each in found]


@cache
def plainly(name: str, *sizes: int) -> list[list[tuple]]:
    found = several(build(name), [group.at(np.array(sizes)) for group in groups()], H200)
    return [[bits(answer) for answer in each.each()] for each in found]


sizes = st.lists(st.integers(1, 20_000), min_size=1, max_size=6)


@pytest.mark.parametrize("name", ["measured", "learned"])
@given(sizes, sizes, st.booleans())
@examples(15)
def test_answers_are_those_of_the_oracle_whatever_is_known(tmp_path_factory, name, known, more, alone):
    folder, both = tmp_path_factory.mktemp("known"), known if alone else [*more, *known, *more]
    answers(build(name), folder, *known)
    assert answers(build(name), folder, *both) == plainly(name, *both)


def test_only_sizes_that_are_new_are_asked_about_and_in_one_question(tmp_path):
    oracle = Columns()
    asked = remembered(oracle, tmp_path)
    asked.several(products(1, 64, 300), H200)
    oracle.asked.clear()
    found = asked.several(products(7, 64, 1, 65, 300), H200)  # before they are written
    assert oracle.asked == products(7, 65).each()
    assert found.seconds.tolist() == [1e-5 * rows for rows in 4 * [7, 64, 1, 65, 300]]
    asked.close()
    later = Columns()
    assert remembered(later, tmp_path).several(products(300, 7), H200).seconds.tolist() == 4 * [1e-5 * 300, 1e-5 * 7]
    assert not later.asked


def test_another_gpu_and_other_kinds_are_asked_about(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "KINDS", 1)
    oracle = Columns()
    asked, known = remembered(oracle, tmp_path), products(1, 7)
    fewer = Several(Gemm(*[column[:2] for column in (known.kernel.m, known.kernel.n, known.kernel.k)]),
                    known.kinds[:1], 2)
    for kernels, gpu in 2 * [(known, H200), (known, evolve(H200, sms=100)), (fewer, H200)]:
        assert asked.several(kernels, gpu).seconds.tolist() == [1e-5 * rows for rows in kernels.kernel.m.tolist()]
    assert oracle.asked == [*known.each(), *known.each(), *fewer.each()]


def test_what_has_no_columns_is_asked_about_kernel_by_kernel_and_remembered(tmp_path):
    class Plain(Counting):
        def several(self, kernels, gpu):
            return None

        def basis(self, gpu):
            return ()

        def estimates(self, kernels, gpu):
            self.asked += kernels
            return build("measured").estimates(kernels, gpu)

    oracle, kernels = Plain(), groups()[1].at(np.array(SIZES))
    asked = remembered(oracle, tmp_path)
    for _ in range(2):
        assert asked.several(kernels, H200) is None
        (found,) = several(asked, [kernels], H200)
        assert [bits(each) for each in found.each()] == plainly("measured", *SIZES)[1]
    assert oracle.asked == kernels.each()


def test_an_oracle_without_columns_has_none_here_either(tmp_path):
    assert remembered(Counting(), tmp_path).several(products(1), H200) is None


def test_where_nothing_can_be_kept_the_oracle_answers(tmp_path):
    (tmp_path / "file").touch()
    asked = remembered(build("measured"), tmp_path / "file" / "folder")
    for _ in range(2):
        assert [bits(each) for each in asked.several(products(*SIZES), H200).each()] == plainly("measured", *SIZES)[0]
    asked.close()
    assert "prices are not kept in" in asked.remarks[0]


def keys_of(kernels: Several, origin: bytes = b"origin") -> list[bytes]:
    return of_sizes(of_kinds(origin, kernels.kinds), kernels)


def test_what_prices_follow_from_tells_them_apart():
    """Another field of any kind, family, number or format of numbers is another key, and so are fewer kinds."""
    known = products(5, 6)
    kernel = known.kernel
    other = [evolve(each, activations=DType.FP8) for each in known.kinds]
    others = [Several(kernel, other, 2), Several(evolve(kernel, m=kernel.m + 8), known.kinds, 2),
              Several(evolve(kernel, n=kernel.n[::-1]), known.kinds, 2), Several(kernel, known.kinds[::-1], 2),
              Several(evolve(kernel, m=kernel.m.astype(np.float64)), known.kinds, 2),
              Several(Gemm(kernel.m[:6], kernel.n[:6], kernel.k[:6]), known.kinds[:3], 2)]
    keys = [keys_of(known), keys_of(known, b"another"), *map(keys_of, others),
            [of_kernel(b"origin", each) for each in known.each()]]
    assert len({key for each in keys for key in each}) == sum(map(len, keys))
    assert keys_of(products(6, 5)) == keys[0][::-1]
    assert [keys_of(products(size)) for size in (5, 6)] == [[key] for key in keys[0]]


@given(flips, cuts)
@examples(40)
def test_answers_are_those_of_the_oracle_whatever_happens_to_the_file(tmp_path_factory, flipped, cut):
    folder = tmp_path_factory.mktemp("damaged")
    answers(build("measured"), folder, *SIZES)
    damage(folder, flipped, cut)
    for _ in range(2):
        assert answers(build("measured"), folder, *SIZES) == plainly("measured", *SIZES)


def ask(folder, *sizes: int) -> tuple[list[float], int]:
    """Seconds of products of these *sizes*, and how many the oracle was asked about."""
    oracle = Columns()
    asked = remembered(oracle, folder)
    found = asked.several(products(*sizes), H200)
    asked.close()
    return found.seconds.tolist(), len(oracle.asked)


@pytest.mark.parametrize("spoiled", [
    lambda row, other: "text", lambda row, other: 3, lambda row, other: b"", lambda row, other: row[:-1],
    lambda row, other: row + row, lambda row, other: other, lambda row, other: sealed(b"another", row[8:])],
    ids=["text", "number", "empty", "shorter", "longer", "of another size", "of another key"])
def test_a_row_that_is_not_its_own_is_asked_about_anew_and_mended(tmp_path, spoiled):
    whole = ask(tmp_path, 1, 7)[0]
    (path,) = tmp_path.iterdir()
    with closing(sqlite3.connect(path)) as connection, connection:
        (key, row), (_, other) = connection.execute("SELECT key, row FROM prices").fetchall()
        connection.execute("UPDATE prices SET row = ? WHERE key = ?", (spoiled(row, other), key))
    assert ask(tmp_path, 1, 7) == (whole, 4)
    assert ask(tmp_path, 1, 7) == (whole, 0)
