"""The local executors of a run: one per device, or one per team of devices if cases are spread over several."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.errors import Unavailable, UsageError, refusal
from attnbench.machine.device import Device
from attnbench.machine.gpus import ALL, chosen_gpus
from attnbench.record import Run
from attnbench.sweep.executor import DeviceExecutor
from attnbench.workloads.base import load_workload


def executors_on(
    who: str, run: Run, devices: Sequence[Device] | None, files: Sequence[str], *, wait: bool = True
) -> list[DeviceExecutor]:
    """Return one executor for each device, or for each team.

    Args:
        who: program name, for messages.
        run: the planned run.
        devices: chosen by the user; None: the one of the run's settings, and those that follow it.
        files: paths of --backends files.
        wait: for another run to release a GPU; False refuses.

    Raises:
        UsageError: the chosen devices do not form whole teams.
        Unavailable: a device does not exist.
    """
    first = Device.parse(run.settings.device)
    size = largest_team(run) if first.on_gpu else 1
    teams = _teams(who, devices, size) if devices is not None else [_following(who, first, size)]
    before = len(teams) == 1 and bool(run.environments)
    return [DeviceExecutor(team[0], tuple(files), measured_before=before, wait=wait, beside=team[1:]) for team in teams]


def largest_team(run: Run) -> int:
    """Return the largest number of devices that a group of the run needs."""
    workloads = {group.workload: load_workload(group.workload) for group in run.plan}
    sizes = (workloads[one.workload].devices(workloads[one.workload].case(one.case)) for one in run.plan)
    return max(sizes, default=1)


def _following(who: str, first: Device, size: int) -> list[Device]:
    team = [Device(first.kind, first.index + number) for number in range(size)]
    if size > 1 and (there := len(chosen_gpus(who, ALL))) < team[-1].index + 1:
        wrong = f"is over the GPUs from {first} on: {there - first.index} of {there}"
        raise Unavailable(refusal(who, "world", size, wrong, f"at most {max(1, there - first.index)}"))
    return team


def _teams(who: str, devices: Sequence[Device], size: int) -> list[list[Device]]:
    """Split devices into teams of `size` consecutive ones: ranks are on the worker's device and those after it."""
    teams = [list(devices[start : start + size]) for start in range(0, len(devices), size)]
    named = ",".join(str(one.index) for one in devices)
    for team in teams:
        if len(team) < size or any(one.index != team[0].index + place for place, one in enumerate(team)):
            accepted = (
                f"{size} GPUs that follow each other, such as {','.join(map(str, range(size)))}, or several times that"
            )
            raise UsageError(
                refusal(
                    who, "--gpus", named, f"is no team of world={size}", accepted, "CUDA_VISIBLE_DEVICES reorders them"
                )
            )
    return teams
