"""Two processes that want one directory: the first has it, the other is told so before it runs anything."""

import pytest

from ksim.foundation.errors import ConfigError
from ksim.study.directory import StudyDirectory
from ksim.views import run_directory
from tests.cli.command import SCENARIO, ksim_here

fcntl = pytest.importorskip("fcntl")
HELD = "out: another process is writing there"


def test_a_directory_is_claimed_by_one_at_a_time(tmp_path):
    target = tmp_path / "new" / "out"
    with (run_directory.claimed(target), pytest.raises(ConfigError, match=HELD),
          run_directory.claimed(target)):
        pytest.fail("two have it")
    assert not any(tmp_path.iterdir())  # nothing is left
    with run_directory.claimed(target):
        pass


def test_a_lock_that_a_killed_process_left_holds_nobody_up(tmp_path):
    (tmp_path / ".out.ksim-lock").touch()
    with run_directory.claimed(tmp_path / "out"):
        pass
    assert not any(tmp_path.iterdir())


def test_a_run_that_was_written_before_the_claim_is_not_replaced(tmp_path, monkeypatch):
    def locked(*_):
        (tmp_path / "out").mkdir()
        for mark in run_directory.MARKS:
            (tmp_path / "out" / mark).touch()

    monkeypatch.setattr(fcntl, "flock", locked)
    with pytest.raises(ConfigError, match="holds an earlier run"), run_directory.claimed(tmp_path / "out", force=False):
        pytest.fail("it was there")


@pytest.mark.parametrize("command", [
    "run s.toml -o out --quiet", "run s.toml -o out --stream", "run s.toml -o out --force",
    "sweep s.toml --over seed=1,2 -o out -j 1", "tune s.toml --space serve.max_num_seqs=8,16 --minimize mean_ttft_ms"
    " --trials 1 -o out -j 1", "routers s.toml --routers round_robin -o out -j 1 --set serve.data_parallel_size=2",
    "sweep s.toml --front --over seed=1,2 -o out --jobs 1", "capacity s.toml --slo ttft:p50:1s -o out -j 1",
])
def test_every_command_refuses_a_directory_that_another_process_writes(tmp_path, command):
    (tmp_path / "s.toml").write_text(SCENARIO)
    with run_directory.claimed(tmp_path / "out"):
        refused = ksim_here(*command.split(), folder=tmp_path)
    assert refused.status == 1 and HELD in refused.stderr and refused.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]


def test_a_study_on_a_full_disk_says_so_and_keeps_what_was_written(tmp_path):
    class Full:
        """A file on a full disk."""

        def write(self, *_):
            raise OSError(28, "No space left on device")

        close = flush = write

    class Line:
        key, line = (1, 0), "x"

    with StudyDirectory.create(tmp_path / "out", "sweep", "", {}, "") as study:
        study._lines.close()
        study._lines = Full()
        with pytest.raises(ConfigError, match="out: cannot be written: No space left on device"):
            study.add(Line())
        assert not study.rows
