"""One process at a time writes a run file: another is refused, a dead one's lock is free, no files remain."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from small_runs import small_run

from attnbench.errors import Unavailable, UsageError
from attnbench.machine import child
from attnbench.store.runfile import write
from attnbench.sweep.run import execute
from attnbench.sweep.run_lock import sole_writer

HOLDER = """
import sys
from pathlib import Path
path, sys.argv = Path(sys.argv[1]), ["/usr/bin/attnbench", "run", "quick"]
from attnbench.sweep.run_lock import sole_writer
with sole_writer(path):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that carries out the run of `run.json`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run.json")],
        env=child.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def names(folder) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_second_run_of_a_file_is_refused_in_one_line_before_anything_is_done(holder, tmp_path):
    path, run = tmp_path / "run.json", small_run(["honest"])
    write(run, path)
    before = path.read_bytes()
    with pytest.raises(Unavailable) as refused:
        execute(run, path=path, executors=[object()])
    who = rf"attnbench run quick \(process {holder.pid}, since [0-9:]+ UTC\)"
    assert re.match(rf"attnbench: run=run\.json is being written by {who}; ", str(refused.value))
    assert path.read_bytes() == before


def test_a_run_in_the_same_process_is_another_one_too_and_other_files_are_free(tmp_path):
    with sole_writer(tmp_path / "run.json"), sole_writer(tmp_path / "other.json"):
        with pytest.raises(Unavailable, match=rf"process {os.getpid()}, since"), sole_writer(tmp_path / "run.json"):
            pytest.fail("it was not refused")
        assert names(tmp_path) == [".other.json.lock", ".run.json.lock"]
    assert names(tmp_path) == []


def test_a_dead_holder_keeps_nobody_off_and_his_lock_goes(holder, tmp_path):
    assert names(tmp_path) == [".run.json.lock"]
    holder.kill()
    holder.wait()
    with sole_writer(tmp_path / "run.json"):
        pass
    assert names(tmp_path) == []


def test_a_lock_that_was_removed_after_it_was_opened_is_not_held(tmp_path, monkeypatch):
    from attnbench.sweep import run_lock

    place, taken, gone = tmp_path / ".run.json.lock", run_lock.taken, []

    def removed_meanwhile(path):
        handle = taken(path)
        if not gone:
            gone.append(path)
            place.unlink()
        return handle

    monkeypatch.setattr(run_lock, "taken", removed_meanwhile)
    with sole_writer(tmp_path / "run.json"):
        assert place.exists()
        with pytest.raises(Unavailable), sole_writer(tmp_path / "run.json"):
            pytest.fail("it was not refused")


def test_a_folder_that_was_made_for_nothing_goes_again_and_one_with_files_stays(tmp_path):
    path = tmp_path / "new" / "run.json"
    with sole_writer(path):
        assert path.parent.is_dir()
    assert not path.parent.exists()
    with sole_writer(path):
        path.touch()
    assert names(path.parent) == ["run.json"]


def test_a_folder_that_cannot_be_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be locked \("), sole_writer(tmp_path / "file" / "run.json"):
        pytest.fail("it was not refused")
