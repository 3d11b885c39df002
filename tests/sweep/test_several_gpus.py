"""Two simulated H200, from the queue to the run file, with one real worker on each."""

from __future__ import annotations

import dataclasses
import threading

import pytest
from simulated_timers import TRUE_MS
from small_runs import FAKES, small_run

from attnbench.machine import gpu_lock
from attnbench.machine.device import Device
from attnbench.record import Status
from attnbench.store.runfile import read
from attnbench.sweep.executor import DeviceExecutor
from attnbench.sweep.run import execute

FILE = str(FAKES / "on_card.py")
SETTINGS = {"device": "cuda:0", "baseline": "reference", "warmup": 0, "iterations": 5}


@pytest.fixture
def cards(nvml, monkeypatch, tmp_path):
    """UUIDs of the two."""
    monkeypatch.syspath_prepend(str(FAKES / "simulated_h200"))
    monkeypatch.setenv("ATTNBENCH_TIMERS", str(FAKES / "simulated_timers.py"))
    first = nvml.card()["uuid"]
    return first, nvml.add("NVIDIA H200", 2)


def both() -> list[DeviceExecutor]:
    return [DeviceExecutor(Device("cuda", index), (FILE,), wait=False) for index in (0, 1)]


def test_records_name_the_gpu_they_were_measured_on_and_the_run_is_resumed_by_one(cards, tmp_path):
    path, held = tmp_path / "run.json", []
    plan = small_run(*[["reference", "twice-as-fast"]] * 4, **SETTINGS)
    together, first = threading.Barrier(2, timeout=600), {"cuda:0", "cuda:1"}
    executors = both()
    for executor in executors:
        measure = executor.measure

        def wait(group, settings, on_progress, executor=executor, measure=measure):
            if executor.name in first:
                first.remove(executor.name)
                together.wait()
            return measure(group, settings, on_progress)

        executor.measure = wait
    run = execute(
        plan,
        path=path,
        backend_files=[FILE],
        executors=executors,
        on_event=lambda event: held.append(set(gpu_lock.GpuLock._held)),
    )
    assert {frozenset(one) for one in held} == {frozenset(cards)}, "all the while"
    assert gpu_lock.GpuLock._held == {}
    assert {one.status for one in run.records} == {Status.PASSED}
    assert {one.gpu_uuid for one in run.environments} == set(cards)
    for group in run.plan:
        own = [one for one in run.records if one.group == group.group]
        assert len({one.environment for one in own}) == 1, "a group stays on one GPU"
        assert own[1].speedup.ratio == pytest.approx(2.0, rel=1e-3)
        index = cards.index(run.environments[own[0].environment].gpu_uuid)
        assert f"--device cuda:{index}" in own[0].repro
    assert {record.time.median_ms for record in run.records} <= {TRUE_MS["reference"], TRUE_MS["twice-as-fast"]}
    assert read(path) == run
    # half of it gone: one GPU finishes it, and what is there is not measured again
    kept = dataclasses.replace(run, records=run.records[:4])
    again = execute(kept, path=path, backend_files=[FILE])
    assert again.records[:4] == kept.records
    assert [one.group for one in again.records] == [one.group for one in run.records]
    assert {again.environments[one.environment].gpu_uuid for one in again.records[4:]} == {cards[0]}
