"""A run file that temporarily cannot be written: measuring goes on, and the caller gets the results."""

from __future__ import annotations

import pytest
from small_runs import small_run

from attnbench.errors import UsageError
from attnbench.record import Record, Status
from attnbench.store import runfile
from attnbench.store.runfile import read
from attnbench.sweep.executor import Measured
from attnbench.sweep.run import execute


class Quick:
    """An executor without a worker."""

    name = "cpu"

    def order(self) -> str:
        return self.name

    def open(self, on_progress) -> None:
        """It is there."""

    def close(self) -> None:
        """Nothing to end."""

    def measure(self, group, settings, on_progress) -> Measured:
        [backend] = group.backends
        record = Record(
            workload=group.workload,
            case=group.case,
            case_id=group.case_id,
            group=group.group,
            backend=backend,
            status=Status.FAILED,
            reason="it was made to",
        )
        return Measured((record,), (), 0.0)


@pytest.fixture
def disk(monkeypatch):
    """Says for each attempt in turn whether there is room; after the last there is."""
    room, write_bytes = [], runfile.write_bytes

    def written(path, data) -> None:
        if room and not room.pop(0):
            raise UsageError(f"output: path={path} cannot be written (No space left on device)")
        write_bytes(path, data)

    monkeypatch.setattr(runfile, "write_bytes", written)
    return room


def test_a_disk_that_is_full_for_a_while_costs_nothing(disk, tmp_path):
    path, plan, said = tmp_path / "run.json", small_run(*[["honest"]] * 4), []
    disk += [True, False, False]
    run = execute(plan, path=path, executors=[Quick()], on_event=said.append)
    assert len(run.records) == 4
    assert read(path) == run
    [told] = [event.text for event in said if event.kind == "unwritten"]
    assert told.endswith("(No space left on device); measuring goes on, and it is tried again after each group")
    assert [event.kind for event in said if event.kind in ("group", "done")] == ["group"] * 4 + ["done"]


def test_where_it_stays_full_the_last_event_has_the_run(disk, tmp_path):
    path, plan, said = tmp_path / "run.json", small_run(*[["honest"]] * 4), []
    disk += [True, False, False, False, False]
    with pytest.raises(UsageError, match="No space left"):
        execute(plan, path=path, executors=[Quick()], on_event=said.append)
    assert said[-1].kind == "done"
    assert len(said[-1].run.records) == 4
    assert len(read(path).records) == 1, "as much as had room"
