"""The flags that choose what executes a run, and the executors they select."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnbench.cli.parser import Parser
from attnbench.errors import UsageError, parsed, refusal, unknown
from attnbench.record import Run

if TYPE_CHECKING:
    from attnbench.machine.device import Device
    from attnbench.sweep.executor import Executor


def add_arguments(parser: Parser, *, several: bool = True) -> None:
    """Declare the flags; `several`: those of more than one GPU too."""
    group = parser.add_argument_group("GPUs", "A run keeps others off its GPUs while it measures.")
    add_no_wait(group)
    group.add_argument(
        "--jobs",
        metavar="N",
        help=(
            "processes that compile Triton kernels in advance, while nothing is sampled; 0: each first call compiles "
            "(default: one per core)"
        ),
    )
    if not several:
        parser.set_defaults(gpus=None, shard=None, engine=None, address=None)
        return
    group.add_argument(
        "--gpus",
        metavar="all|LIST",
        help=(
            "numbers of GPUs, such as 0,2 (2 is GPU number 2, not two GPUs); the worker of each takes groups from one "
            "queue, longest first, and each group stays on one GPU (default: the one of --device)"
        ),
    )
    group.add_argument(
        "--engine",
        metavar="local|ray",
        help="where workers run: local, or every GPU of a Ray cluster (--device cpu: every machine) (default: local)",
    )
    group.add_argument("--address", metavar="HOST:PORT", help="of the Ray cluster, which must include this machine")
    group.add_argument(
        "--shard",
        metavar="I/N",
        help="measure this part of the plan, such as 2/5; `attnbench merge` merges the parts (default: all of it)",
    )


def add_no_wait(group: argparse._ActionsContainer) -> None:
    """Declare what is done where another run holds a GPU."""
    group.add_argument("--no-wait", action="store_true", help="refuse a GPU that another run holds (default: wait)")


def planned_device(args: argparse.Namespace, who: str, device: str | None) -> Device:
    """Return the device of a plan: the first of --gpus, else `device`, the value of --device.

    Raises:
        UsageError: both are given, or --gpus is malformed.
        Unavailable: the device is not available.
    """
    from attnbench.machine.device import Device
    from attnbench.machine.devices import resolve

    if on_cluster(args, who):  # which may have GPUs that this machine lacks
        return Device.parse("cuda" if device in (None, "auto") else str(device))
    if args.gpus is None:
        return resolve(device or "auto")
    if device is not None:
        raise UsageError(refusal(who, "--device", device, "does not go with --gpus", "one of the two"))
    return _gpus(args, who)[0]


def executors_of(args: argparse.Namespace, who: str, run: Run, files: Sequence[str]) -> list[Executor]:
    """Return the executors of a planned run.

    Raises:
        UsageError: the flags contradict each other.
        Unavailable: a GPU is not available.
    """
    from attnbench.machine.device import Device
    from attnbench.sweep.teams import executors_on, largest_team

    if on_cluster(args, who):
        if run.settings.lock_clocks:
            raise UsageError(
                refusal(who, "--lock-clocks", run.settings.lock_clocks, "is for this machine", "without --engine ray")
            )
        from attnbench.sweep.ray_engine import ray_executors

        device = Device.parse(run.settings.device)
        size = largest_team(run) if device.on_gpu else 1
        return list(ray_executors(args.address, device, files, wait=not args.no_wait, size=size))
    devices: Sequence[Device] | None = None
    if args.gpus is not None and not Device.parse(run.settings.device).on_gpu:
        wrong = f"is for GPUs, and this run was planned for {run.settings.device}"
        raise UsageError(refusal(who, "--gpus", args.gpus, wrong, "a run that was planned for GPUs"))
    if args.gpus is not None:
        devices = _gpus(args, who)
    return list(executors_on(who, run, devices, files, wait=not args.no_wait))


def jobs_of(args: argparse.Namespace, who: str) -> int:
    """Return the number of processes that compile in advance; 0 on a cluster, whose machines have their own caches.

    Raises:
        UsageError: --jobs is not a valid count.
    """
    from attnbench.suites.settings import whole
    from attnbench.sweep.ahead import default_jobs

    if args.jobs is None:
        return 0 if args.engine == "ray" else default_jobs()
    jobs = parsed(who, "--jobs", args.jobs, whole(0))
    if jobs and args.engine == "ray":
        raise UsageError(refusal(who, "--jobs", args.jobs, "is for this machine", "without --engine ray"))
    return jobs


def on_cluster(args: argparse.Namespace, who: str) -> bool:
    """Return whether Ray executes the run.

    Raises:
        UsageError: the flags contradict each other.
    """
    if args.engine not in (None, "local", "ray"):
        raise unknown(who, "--engine", args.engine, ("local", "ray"))
    ray = args.engine == "ray"
    if ray and args.address is None:
        raise UsageError(refusal(who, "--engine", "ray", "has no cluster", "--address HOST:PORT beside it"))
    if not ray and args.address is not None:
        raise UsageError(refusal(who, "--address", args.address, "is of a Ray cluster", "beside --engine ray"))
    if ray and args.gpus is not None:
        raise UsageError(refusal(who, "--gpus", args.gpus, "does not go with --engine ray", "all GPUs of the cluster"))
    return ray


def _gpus(args: argparse.Namespace, who: str) -> tuple[Device, ...]:
    from attnbench.machine.gpus import chosen_gpus

    return chosen_gpus(who, args.gpus)
