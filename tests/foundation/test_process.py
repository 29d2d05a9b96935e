"""What a process may do that is a command's alone."""

import gc
import os

import pytest

from ksim.foundation import process


def test_it_has_one_thread_and_looks_for_no_cycles(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "")  # so that it is as it was afterwards
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    with process.alone():
        assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("threads", ["2", "8"])
def test_the_environment_may_ask_for_more_threads(monkeypatch, threads):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
    with process.alone():
        assert os.environ["OPENBLAS_NUM_THREADS"] == threads
