"""The process that compiles the kernels of planned sessions before a worker opens them; it uses no GPU.

`python -m attnbench.worker.ahead`, started by `sweep.ahead` with a request on stdin.  It opens each session on "meta"
tensors and calls it; the kernels that Triton would compile are compiled by parallel processes
(`kernels.shared.ahead`).  Errors are ignored here: the worker reports them in the record of their row.

It writes one line per event: ``{"group": G, "kernels": N}``, the number of kernels that a group is the first to need;
``{"done": G}``, one of these is compiled or has failed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Machine
from attnbench.errors import Unsupported
from attnbench.record import PlannedGroup, from_dict
from attnbench.workloads.base import load_workload

if TYPE_CHECKING:
    from attnbench.kernels.shared.ahead import Job
    from attnbench.kernels.shared.card import Card

ALONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment of forked processes: one thread each."""


def serve() -> int:
    """Carry out the request on stdin."""
    request = json.load(sys.stdin)
    os.environ |= ALONE
    asked = None if request["card"] else _ask_card(request["device"])
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from attnbench.kernels.shared.ahead import compile_all, die_with
    from attnbench.kernels.shared.card import Card

    die_with(request["parent"])
    capability, processors = request["card"] or _answer(asked)
    card = Card((capability[0], capability[1]), processors)
    groups = [from_dict(PlannedGroup, one, "request.group") for one in request["groups"]]
    owners: dict[str, str] = {}
    jobs = needed(groups, request["files"], card, owners)
    compile_all(jobs, processes=request["jobs"], on_end=lambda job, done: _send(done=owners[job.key]))
    return 0


def needed(groups: Sequence[PlannedGroup], files: Sequence[str], card: Card, owners: dict[str, str]) -> Iterator[Job]:
    """Yield the kernels that groups need, each once, in the order of the groups.

    Args:
        groups: of a plan.
        files: paths of --backends files.
        card: the card that the groups are measured on.
        owners: filled with the first group that needs each kernel, by the kernel's key.
    """
    for group in groups:
        jobs = {job.key: job for name in group.backends for job in jobs_of(group, name, files, card)}
        new = [job for key, job in jobs.items() if key not in owners]
        owners |= {job.key: group.group for job in new}
        _send(group=group.group, kernels=len(new))
        yield from new


def jobs_of(group: PlannedGroup, name: str, files: Sequence[str], card: Card) -> list[Job]:
    """Return the kernels that one session launches; none if the backend's sessions need a GPU to be opened."""
    from attnbench.kernels.shared.ahead import gathered
    from attnbench.worker.entry import backend_for

    workload = load_workload(group.workload)
    jobs: dict[str, Job] = {}
    try:
        case = workload.case(group.case)
        backend = backend_for(name, case, files)
        if not backend.ahead:
            return []
        backend.probe()
        backend.check(case, Machine("cuda", card.capability))
        with gathered(card) as jobs:
            inputs = workload.inputs(case, seed=0, kind="zeros", device="meta")
            with backend.session(case, inputs) as launch:
                launch.forward()
                if case.mode != "fwd":
                    launch.call(case.mode)()
    except Exception:  # catches everything: the worker reports it in the row's record
        pass
    return list(jobs.values())


def _ask_card(device: str) -> int:
    """Fork a process that queries the card and ends with its CUDA context; return the pipe of its answer."""
    answer, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return answer
    try:
        import torch

        found = torch.cuda.get_device_properties(device)
        os.write(writer, json.dumps([[found.major, found.minor], found.multi_processor_count]).encode())
    finally:
        os._exit(0)


def _answer(pipe: int | None) -> Any:
    assert pipe is not None
    with os.fdopen(pipe, "rb") as reader:
        text = reader.read()
    os.wait()
    if not text:
        raise Unsupported("ahead: there is no card to compile for")
    return json.loads(text)


def _send(**message: Any) -> None:
    sys.stdout.write(f"{json.dumps(message)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(serve())
