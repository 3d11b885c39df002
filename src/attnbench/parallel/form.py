"""What a form of context-parallel attention is, and how one is found.

A form is a file in `parallel/forms/` (with _ for each - of the name) whose class `Form` derives from `ParallelForm`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from attnbench.parallel.deal import Rows
from attnbench.parallel.problem import Problem


@dataclass(frozen=True)
class Group:
    """This process among its ranks; the default process group joins them."""

    rank: int
    world: int
    device: torch.device

    def swap(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> list[Any]:
        """Begin to send tensors to ranks and to receive others; whom to wait for.

        What two ranks send each other is paired by its order; empty tensors are left out on both sides.  On a GPU the
        current stream goes on meanwhile, and waits where `wait` is called.
        """
        ops = [dist.P2POp(dist.isend, x, rank) for rank, x in sends if x.numel()]
        ops += [dist.P2POp(dist.irecv, x, rank) for rank, x in receives if x.numel()]
        return dist.batch_isend_irecv(ops) if ops else []


def wait(works: Sequence[Any]) -> None:
    """Have the current stream wait for what was begun (on a CPU: wait)."""
    for work in works:
        work.wait()


class ParallelForm(ABC):
    """One problem on one rank.

    `run` is what is timed: it leaves `out`, rows as in `rows`.  `phases` are parts of it that can be carried out
    alone, by every rank in the same order.
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
        """Rows of the whole tensors that this rank has, in the order of its own."""

    @abstractmethod
    def run(self) -> None:
        """Compute `out` from q, k and v."""

    def taken(self) -> None:  # noqa: B027 (most forms compute on rows as they lie)
        """Untimed, after new values of q, k and v: bring them into another layout."""

    def result(self) -> Tensor:
        """`out` in the layout of the rows; untimed."""
        return self.out

    def phases(self) -> Mapping[str, Callable[[], Any]]:
        """Exchange, permute, attention: those that the form has, each alone and without overlap."""
        return {}

    def sent_bytes(self) -> int:
        """Bytes that leave this rank in one call."""
        return 0

    def notes(self) -> tuple[str, ...]:
        """For the record."""
        return ()

    def poison(self) -> None:
        """Spoil the last result, so that a call that computes nothing shows."""
        self.out.fill_(torch.nan)


def form_of(name: str) -> type[ParallelForm]:
    """The form of a name."""
    found: type[ParallelForm] = importlib.import_module(f"attnbench.parallel.forms.{name.replace('-', '_')}").Form
    return found
