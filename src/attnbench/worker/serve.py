"""The worker's main loop: reads a request, carries it out, and sends the results."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
from typing import IO, Any

from attnbench.backends.base import Machine
from attnbench.check.functions import import_all
from attnbench.errors import WorkerError
from attnbench.machine.child import die_with_parent
from attnbench.machine.device import Device
from attnbench.machine.fingerprint import environment
from attnbench.machine.neighbours import Neighbours, OtherLoad
from attnbench.record import PlannedGroup, Record, Settings, Status, from_dict, to_dict
from attnbench.worker.activity import HARNESS, ActivityPage
from attnbench.worker.device import ContextLost, Stuck
from attnbench.worker.group import GroupRun
from attnbench.worker.private import without_paths
from attnbench.worker.protocol import PARENT, parse, send


def serve(device: str, page_fd: int, read_fd: int, write_fd: int) -> int:
    """Serve until the parent closes the pipe.

    Args:
        device: text form of the `Device` that this process measures on.
        page_fd: file descriptor of the activity page.
        read_fd: pipe of requests.
        write_fd: pipe of answers.
    """
    die_with_parent(PARENT)
    _import_torch()
    page = ActivityPage(page_fd)
    _keep_from_children(page, read_fd, write_fd)
    with os.fdopen(read_fd, encoding="utf-8") as requests, os.fdopen(write_fd, "w", encoding="utf-8") as answers:
        place = Device.parse(device)
        neighbours = Neighbours(place)  # before this process has a CUDA context
        load = None if place.on_gpu else OtherLoad()
        place = place.named()
        machine = _machine(place)
        send(answers, say="ready", environment=environment(place))
        for line in requests:
            message = parse(line.encode())
            if message.get("do") != "group":
                raise WorkerError(f"worker: do={message.get('do')} is not known; group")
            try:
                sampling_s = _carry_out(message, place, machine, neighbours, load, page, answers)
            except ContextLost as lost:
                say = "stuck" if isinstance(lost, Stuck) else "lost"
                send(answers, say=say, index=lost.index, phase=lost.phase, reason=str(lost))
                # Calls of a lost context may hang, and so would its destructors in an orderly exit.
                os._exit(0)
            page.announce(HARNESS, "idle")
            # Objects alive now stay alive: later garbage collections need not scan them.
            gc.freeze()
            send(answers, say="done", number=message["number"], sampling_s=sampling_s)
    return 0


def _keep_from_children(page: ActivityPage, *pipes: int) -> None:
    """Keep the pipes from processes that a backend starts, so that none of them can answer in place of the worker.

    Programs that it executes do not inherit them.  In a forked process both ends are replaced by the null device, and
    a fork that returns into the worker's code ends there.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for handle in (page.handle, *pipes):
        os.set_inheritable(handle, False)

    def separate() -> None:
        page.end_at_next_step()
        for pipe in pipes:
            os.dup2(null, pipe, inheritable=False)

    os.register_at_fork(after_in_child=separate)


def _import_torch() -> None:
    """Import torch with garbage collection off: its objects stay alive, and scanning them takes 0.1 s each time."""
    gc.disable()
    import torch  # noqa: F401 (only to be there)

    gc.enable()
    gc.freeze()


def _carry_out(
    message: dict[str, Any],
    device: Device,
    machine: Machine,
    neighbours: Neighbours,
    load: OtherLoad | None,
    page: ActivityPage,
    answers: IO[str],
) -> float:
    """Carry out one request; its tensors are gone when this returns."""
    if load is not None:
        load.cores()  # starts the measurement
    run = GroupRun(
        from_dict(PlannedGroup, message["group"], "request.group"),
        from_dict(Settings, message["settings"], "request.settings"),
        files=message["files"],
        device=device,
        machine=machine,
        page=page,
        on_record=lambda record: send(answers, say="record", record=_fit(_noted(record, neighbours, load))),
    )
    import_all(run.group.workload)  # before any file of a user
    return run.carry_out()


def _fit(record: Record) -> Record:
    """Return `record`, or a failure in its place if a backend gave a value that no record can hold."""
    try:
        from_dict(Record, to_dict(record), record.backend)
        json.dumps(to_dict(record))
    except Exception as error:  # catches everything: a backend may give any object
        return Record(
            workload=record.workload,
            case=record.case,
            case_id=record.case_id,
            group=record.group,
            replicate=record.replicate,
            backend=record.backend,
            input=record.input,
            status=Status.FAILED,
            repro=record.repro,
            reason=without_paths(f"its record is refused: {' '.join(str(error).split())[:400]}"),
        )
    return record


def _noted(record: Record, neighbours: Neighbours, load: OtherLoad | None) -> Record:
    """Return a timed record with notes on other users of the GPU or CPU."""
    if record.time is not None and load is not None:
        record = dataclasses.replace(record, time=dataclasses.replace(record.time, other_cores=load.cores()))
    words = neighbours.words() if record.time else None
    return dataclasses.replace(record, notes=(*record.notes, words)) if words else record


def _machine(device: Device) -> Machine:
    if not device.on_gpu:
        return Machine("cpu", memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    import torch

    torch.cuda.set_device(str(device))
    properties = torch.cuda.get_device_properties(str(device))
    return Machine("cuda", (properties.major, properties.minor), properties.total_memory)
