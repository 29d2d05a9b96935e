"""What a process may do that is a command's alone."""

import gc
import os
import signal

import pytest

from ksim.foundation import process


def test_a_process_has_one_thread_and_no_cyclic_collector(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "")  # so that it is as it was afterwards
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    gc.enable()
    with process.dedicated():
        assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()


@pytest.mark.parametrize("threads", ["2", "8"])
def test_the_environment_may_ask_for_more_threads(monkeypatch, threads):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
    with process.dedicated():
        assert os.environ["OPENBLAS_NUM_THREADS"] == threads


@pytest.fixture
def default_sigterm():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_unwinds_the_stack_and_a_second_one_does_not_disturb_that(default_sigterm):
    cleaned = []
    with pytest.raises(process.Terminated) as ended, process.terminable():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.append(True)
    assert cleaned and ended.value.code == 143 and ended.value.message == "terminated; nothing was written"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    again = type(ended.value)(*ended.value.args)
    assert (again.code, again.message) == (143, ended.value.message)


def test_a_sigterm_handler_of_the_caller_is_kept(default_sigterm):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with process.terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
