"""The garbage collector is as it was, whatever happens meanwhile."""

import gc

import pytest

from ksim.foundation import collector


def test_nothing_is_collected_meanwhile_and_all_is_as_before():
    assert gc.isenabled()
    with collector.paused():
        assert not gc.isenabled()
        with collector.paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_leaves_it_on():
    with pytest.raises(ZeroDivisionError), collector.paused():
        raise ZeroDivisionError
    assert gc.isenabled()
