"""Whatever a kernel's shape: nothing negative, no less work for more of it, and blocks that cover the work."""

from typing import Any

import pytest
from attrs import evolve, fields
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.units import DType
from tests.laws.kernels import NAMES, shapes
from tests.properties import examples


def more(value: Any, amount: int) -> Any:
    """A larger value of a field, or the same where there is no more of it."""
    if isinstance(value, DType):
        return DType.BF16
    if isinstance(value, tuple):
        (rows, experts), *rest = value
        return ((rows + amount, experts), *rest)
    return value + amount if isinstance(value, int | float) else value


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@examples(60)
def test_nothing_is_negative(name, data):
    work = data.draw(shapes(name)).work
    assert min(work.flops, work.reads, work.writes) >= 0
    assert work.bytes == work.reads + work.writes


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), amount=st.integers(1, 500))
@examples(40)
def test_work_grows_with_every_field(name, data, amount):
    kernel = data.draw(shapes(name))
    for field in fields(type(kernel)):
        work = kernel.work
        larger = evolve(kernel, **{field.name: more(getattr(kernel, field.name), amount)}).work
        assert larger.flops >= work.flops, field.name
        assert larger.reads >= work.reads, field.name
        assert larger.writes >= work.writes, field.name


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), sms=st.sampled_from([58, 108, 132, 148, 188]))
@examples(60)
def test_blocks_cover_the_work(name, data, sms):
    """Tiles are filled up, so what all blocks compute is at least the kernel's FLOP."""
    kernel = data.draw(shapes(name))
    for launch in kernel.launches(sms):
        assert launch.blocks * launch.flops >= kernel.work.flops * (1 - 1e-9), launch
        assert min(launch.l2_bytes, launch.extra_bytes, launch.longest) >= 0, launch


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), sms=st.sampled_from([58, 108, 132, 148, 188]))
@examples(60)
def test_waves_hold_all_blocks_and_no_sm_idles_through_one(name, data, sms):
    for launch in data.draw(shapes(name)).launches(sms):
        waves = launch.waves(sms)
        assert (waves - 1) * sms < launch.blocks <= waves * sms
        assert 0 <= launch.idle(sms) < 1
        assert launch.busiest(sms) >= launch.blocks / sms * (1 - 1e-9)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@examples(20)
def test_a_kernel_is_a_shape_and_nothing_else(name, data):
    kernel = data.draw(shapes(name))
    assert hash(evolve(kernel)) == hash(kernel)
    assert evolve(kernel) == kernel
    assert kernel.family
