"""The interface of a form (a communication scheme of context-parallel attention), and how forms are found.

A form is a file in `parallel/forms/` (with _ for each - in the name) whose class `Form` derives from `ParallelForm`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from attnbench.parallel.deal import Rows
from attnbench.parallel.problem import Problem

HEAD_START_CYCLES = 10_000
"""About 5 µs by which an exchange starts before the kernel that follows it, on a GPU.  Ours are persistent: once one CTA
runs on each SM, the kernel of NCCL would wait until they end, and nothing would overlap.  Not measured yet."""


@dataclass(frozen=True)
class Group:
    """This process among the ranks, which the default process group joins."""

    rank: int
    world: int
    device: torch.device
    communicator: dist.ProcessGroup | None = None
    "None: that of the default process group"

    def beside(self) -> Group:
        """Return the same ranks with a communicator of their own, whose exchanges run beside this one's; on a CPU this.

        One communicator executes its exchanges one after the other.  All ranks have to call this in the same order.
        """
        return _beside(self) if self.device.type == "cuda" else self

    def swap(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> list[Any]:
        """Start sending tensors to ranks and receiving others; return the operations to wait for.

        Messages between two ranks are matched by their order; empty tensors are skipped on both sides.  On a GPU the
        current stream continues after HEAD_START_CYCLES, and waits where `wait` is called.
        """
        ops = [dist.P2POp(dist.isend, x, rank, self.communicator) for rank, x in sends if x.numel()]
        ops += [dist.P2POp(dist.irecv, x, rank, self.communicator) for rank, x in receives if x.numel()]
        if not ops:
            return []
        works = dist.batch_isend_irecv(ops)
        self.head_start()
        return works

    def head_start(self) -> None:
        """Let an exchange in flight start before the kernel that is launched next; on a GPU."""
        if self.device.type == "cuda":
            torch.cuda._sleep(HEAD_START_CYCLES)


@cache  # a communicator holds memory of the card until the process ends
def _beside(group: Group) -> Group:
    other = dist.new_group()
    dist.all_reduce(torch.ones(1, device=group.device), group=other)  # all ranks have to be there when it is created
    return replace(group, communicator=other)


def wait(works: Sequence[Any]) -> None:
    """Make the current stream wait for operations (on a CPU: wait)."""
    for work in works:
        work.wait()


class ParallelForm(ABC):
    """One problem on one rank.

    `run` is timed: it writes `out`, in the order of `rows`.  `phases` are parts of it that can be executed
    separately, by every rank in the same order.
    """

    title: ClassVar[str]

    def __init__(self, problem: Problem, group: Group) -> None:
        self.problem, self.group = problem, group
        count = sum(end - start for start, end in self.rows())
        dtype = getattr(torch, problem.dtype)

        def empty(heads: int) -> Tensor:
            return torch.empty(count, heads, problem.dim, dtype=dtype, device=group.device)

        self.q, self.k, self.v = empty(problem.heads), empty(problem.heads_kv), empty(problem.heads_kv)
        self.out = torch.empty_like(self.q)

    @abstractmethod
    def rows(self) -> list[Rows]:
        """Rows of the whole tensors that this rank has, in its own order."""

    @abstractmethod
    def run(self) -> None:
        """Compute `out` from q, k and v."""

    def taken(self) -> None:  # noqa: B027 (most forms compute on rows in their given layout)
        """Untimed, called after new values of q, k and v: convert them to another layout if necessary."""

    def result(self) -> Tensor:
        """`out` in the order of the rows; untimed."""
        return self.out

    def phases(self) -> Mapping[str, Callable[[], Any]]:
        """Exchange, permute, attention: those that the form has, each run separately, without overlap."""
        return {}

    def sent_bytes(self) -> int:
        """Bytes that this rank sends in one call."""
        return 0

    def notes(self) -> tuple[str, ...]:
        """Notes for the record."""
        return ()

    def poison(self) -> None:
        """Overwrite the last result, so that a call that computes nothing is detected."""
        self.out.fill_(torch.nan)


def form_of(name: str) -> type[ParallelForm]:
    """Return the form of a name."""
    found: type[ParallelForm] = importlib.import_module(f"attnbench.parallel.forms.{name.replace('-', '_')}").Form
    return found
