"""Folders for unfinished files: gone afterwards, or collected once their owner is gone."""

import shutil
import sys

import pytest

from ksim.foundation import files as module
from ksim.foundation.files import OLD, hidden_directory

locks = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no locks that end with their process here")


def left(parent):
    return sorted(path.name for path in parent.iterdir())


def killed(target, old=None):
    """The folder that a killed process leaves: its files are there, and its lock is not."""
    with hidden_directory(target) as mine:
        (mine / "new").mkdir()
        (mine / "new" / "requests.parquet").write_bytes(b"half")
        if old is not None:
            (mine / OLD).write_text(old)
        copy = mine.with_name(f".{target.name}.dead.ksim-partial")
        shutil.copytree(mine, copy)
    return copy


def test_a_folder_is_hidden_and_gone_afterwards(tmp_path):
    with hidden_directory(tmp_path / "run") as mine:
        assert mine.parent == tmp_path and mine.name.startswith(".run.")
    assert left(tmp_path) == []


@locks
@pytest.mark.parametrize("next_run", ["run", "another"])
def test_folders_left_by_a_killed_process_are_removed_by_the_next(tmp_path, next_run):
    dead = killed(tmp_path / "run")
    assert dead.exists()
    with hidden_directory(tmp_path / next_run):
        assert not dead.exists()
    assert left(tmp_path) == []


def test_the_folder_of_a_live_process_stays(tmp_path):
    with hidden_directory(tmp_path / "run") as mine:
        (mine / "file").touch()
        with hidden_directory(tmp_path / "run") as other:
            assert (mine / "file").exists() and other != mine
        assert (mine / "file").exists()


@locks
def test_a_folder_moved_aside_is_put_back(tmp_path):
    killed(tmp_path / "run", old="an earlier run")
    with hidden_directory(tmp_path / "other"):
        assert (tmp_path / "run").read_text() == "an earlier run"


@locks
def test_a_folder_moved_aside_and_replaced_is_not_put_back(tmp_path):
    killed(tmp_path / "run", old="an earlier run")
    (tmp_path / "run").write_text("the new run")
    with hidden_directory(tmp_path / "other"):
        assert (tmp_path / "run").read_text() == "the new run"
    assert left(tmp_path) == ["run"]


@locks
def test_a_name_from_the_outside_leads_nowhere_else(tmp_path):
    (tmp_path / "inner").mkdir()
    dead = killed(tmp_path / "inner" / "run", old="a file")
    (dead / "owner").write_text("../../elsewhere")
    with hidden_directory(tmp_path / "inner" / "run"):
        assert left(tmp_path) == ["inner"]


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / ".mine.ksim-partial").mkdir()  # has no owner file, so it may be anybody's
    (tmp_path / ".run.abc").mkdir()
    with hidden_directory(tmp_path / "run"):
        pass
    assert left(tmp_path) == [".mine.ksim-partial", ".run.abc"]


def test_without_locks_folders_are_made_and_never_collected(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_locked", lambda file: False)
    with hidden_directory(tmp_path / "run") as mine, hidden_directory(tmp_path / "run"):
        assert mine.exists()
    assert left(tmp_path) == []
