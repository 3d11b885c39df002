"""The process that compiles what planned sessions will launch, before a worker opens them: it has no card.

`python -m attnbench.worker.ahead`, started by `sweep.ahead` with a request on stdin.  A session is opened on inputs
without memory, and called; what its kernels would have Triton compile is compiled by processes side by side
(`kernels.shared.ahead`).  Whatever goes wrong here is left to the worker, which says it in the row's own record.

It says, a line each: ``{"group": G, "kernels": N}``, how many kernels a group needs that no group before it does;
``{"done": G}``, that one of those is compiled or given up.
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
"""Environment of a process that is forked: one thread."""


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
    """Kernels that groups need, each once, in the order of the groups.

    Args:
        groups: of a plan.
        files: paths of --backends files.
        card: that they are measured on.
        owners: takes the group that a kernel, by its key, is first needed by.
    """
    for group in groups:
        jobs = {job.key: job for name in group.backends for job in jobs_of(group, name, files, card)}
        new = [job for key, job in jobs.items() if key not in owners]
        owners |= {job.key: group.group for job in new}
        _send(group=group.group, kernels=len(new))
        yield from new


def jobs_of(group: PlannedGroup, name: str, files: Sequence[str], card: Card) -> list[Job]:
    """Kernels that one session launches; none of a backend that needs a card to say so."""
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
    except Exception:  # the edge: the row's own record says it
        pass
    return list(jobs.values())


def _ask_card(device: str) -> int:
    """Have another process look at a card, which ends with its context; the pipe that its answer is in."""
    answer, said = os.pipe()
    if os.fork():
        os.close(said)
        return answer
    try:
        import torch

        found = torch.cuda.get_device_properties(device)
        os.write(said, json.dumps([[found.major, found.minor], found.multi_processor_count]).encode())
    finally:
        os._exit(0)


def _answer(pipe: int | None) -> Any:
    assert pipe is not None
    with os.fdopen(pipe, "rb") as said:
        text = said.read()
    os.wait()
    if not text:
        raise Unsupported("ahead: there is no card to compile for")
    return json.loads(text)


def _send(**word: Any) -> None:
    sys.stdout.write(f"{json.dumps(word)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(serve())
