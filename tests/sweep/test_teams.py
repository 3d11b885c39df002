"""Executors of a run whose cases are spread over several GPUs: teams of adjacent GPUs."""

from __future__ import annotations

import dataclasses

import pytest
from small_runs import small_run

from attnbench.errors import Unavailable, UsageError
from attnbench.machine.device import Device
from attnbench.machine.gpu_lock import GpuLock
from attnbench.record import PlannedGroup
from attnbench.sweep.executor import DeviceExecutor
from attnbench.sweep.teams import executors_on, largest_team
from attnbench.workloads.attention_cp import WORKLOAD


def run_of(*worlds: int, device: str = "cuda:0"):
    plan = small_run(["reference"], device=device)
    groups = []
    for world in worlds:
        case = WORKLOAD.case({"world": world})
        groups.append(
            PlannedGroup(
                group=case.id, workload="attention-cp", case=case.to_dict(), case_id=case.id, backends=("cp-one",)
            )
        )
    return dataclasses.replace(plan, plan=tuple(groups) or plan.plan)


def gpus(*numbers: int) -> list[Device]:
    return [Device("cuda", number) for number in numbers]


def names(executors: list[DeviceExecutor]) -> list[list[str]]:
    return [sorted(str(lock.device) for lock in one._locks) for one in executors]


def test_an_ordinary_run_has_an_executor_for_each_gpu_that_is_named():
    run = run_of()
    assert largest_team(run) == 1
    assert names(executors_on("x", run, gpus(0, 2), ())) == [["cuda:0"], ["cuda:2"]]
    assert names(executors_on("x", run, None, ())) == [["cuda:0"]]


def test_a_run_over_several_gpus_has_an_executor_for_each_team_and_it_holds_them_all(monkeypatch):
    monkeypatch.setattr("attnbench.machine.gpus.count_gpus", lambda: 4)
    run = run_of(2, 1)
    assert largest_team(run) == 2
    found = executors_on("x", run, gpus(0, 1, 2, 3), ())
    assert names(found) == [["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]]
    assert [str(one.device) for one in found] == ["cuda:0", "cuda:2"]
    assert names(executors_on("x", run, None, ())) == [["cuda:0", "cuda:1"]]
    assert names(executors_on("x", run_of(2, device="cpu"), None, ())) == [["cpu"]]


@pytest.mark.parametrize("numbers", [(0,), (0, 2), (1, 0), (0, 1, 2)])
def test_gpus_that_are_no_team_are_refused(numbers):
    with pytest.raises(UsageError) as refused:
        executors_on("attnbench run", run_of(2), gpus(*numbers), ())
    named = ",".join(map(str, numbers))
    assert str(refused.value) == (
        f"attnbench run: --gpus={named} is no team of world=2; 2 GPUs that follow each other, such as 0,1, or several "
        "times that; CUDA_VISIBLE_DEVICES reorders them"
    )


def test_more_ranks_than_gpus_are_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr("attnbench.machine.gpus.count_gpus", lambda: 2)
    with pytest.raises(Unavailable, match=r"x: world=4 is over the GPUs from cuda:0 on: 2 of 2; at most 2"):
        executors_on("x", run_of(4), None, ())


def test_of_the_locks_of_a_team_all_are_taken_or_none(monkeypatch):
    taken = []

    def acquire(lock, say):
        if str(lock.device) == "cuda:1":
            raise Unavailable("held")
        taken.append(str(lock.device))

    monkeypatch.setattr(GpuLock, "acquire", acquire)
    monkeypatch.setattr(GpuLock, "release", lambda lock: taken.remove(str(lock.device)) if taken else None)
    executor = DeviceExecutor(Device("cuda", 0), beside=gpus(1))
    with pytest.raises(Unavailable, match="held"):
        executor.open(lambda progress: None)
    assert taken == []
