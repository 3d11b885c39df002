"""``ulysses``: an all-to-all from rows to heads, attention of each rank over its heads, an all-to-all back to rows.

The heads of a rank are exchanged in groups, so that the exchanges of one group overlap with attention over another.
Queries, keys and values of a group for each rank are sent in one buffer [W, rows, (H + 2 G) / (W groups), D] by one
all-to-all.  What arrives is in the order of rows, so attention reads it through strides, and its output is sent as it
is.  Each direction needs one permute: into that buffer, and of the received outputs.
(Jacobs et al. 2023, arXiv:2309.14509.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attnbench.parallel.attend import Sequences, attend
from attnbench.parallel.deal import Rows, even_rows
from attnbench.parallel.form import Group, ParallelForm, wait
from attnbench.parallel.problem import Problem

GROUPS = 2
"Groups of a rank's heads, if its KV heads can be divided among them: more have smaller launches and messages."


class _Heads:
    """The buffers of one group of heads."""

    def __init__(self, like: Tensor, world: int, mine: int, total: int, heads: int, heads_kv: int) -> None:
        every, dim = heads + 2 * heads_kv, like.shape[2]
        self.outgoing = like.new_empty(world, mine, every, dim)
        self.incoming = like.new_empty(total, every, dim)
        self.results = like.new_empty(total, heads, dim)
        self.returned = like.new_empty(world, mine, heads, dim)
        self.qkv = self.outgoing.split([heads, heads_kv, heads_kv], 2)
        self.attended = self.incoming.split([heads, heads_kv, heads_kv], 1)


class Form(ParallelForm):
    """Needs H and G divisible by W; rows are distributed regardless of sequences."""

    title = "all-to-all of heads and rows"

    def __init__(self, problem: Problem, group: Group) -> None:
        super().__init__(problem, group)
        world = group.world
        self.sizes = [end - start for start, end in even_rows(problem.total, world)]
        self.mine = self.sizes[group.rank]
        self.heads, self.heads_kv = problem.heads // world, problem.heads_kv // world
        groups = GROUPS if self.heads_kv % GROUPS == 0 else 1
        sizes = self.mine, problem.total, self.heads // groups, self.heads_kv // groups
        self.groups = [_Heads(self.q, world, *sizes) for _ in range(groups)]
        self.of = Sequences(problem.lengths, device=group.device)

    def rows(self) -> list[Rows]:
        """An equal part, in order."""
        return [even_rows(self.problem.total, self.group.world)[self.group.rank]]

    def run(self) -> None:
        """For each group of heads: permute, exchange, attend, exchange, permute; exchanges overlap with attention."""
        arriving = []
        for number in range(len(self.groups)):
            self._to_buffer(number)
            arriving.append(self._rows_for_heads(number))
        returning = []
        for number, work in enumerate(arriving):
            wait([work])
            if len(self.groups) > 1:
                self.group.head_start()
            self._attend(number)
            returning.append(self._heads_for_rows(number))
        for number, work in enumerate(returning):
            wait([work])
            self._from_buffer(number)

    def phases(self) -> Mapping[str, Callable[[], Any]]:
        """Exchange, permute and attention, each separately."""
        numbers = range(len(self.groups))

        def exchange() -> None:
            wait([self._rows_for_heads(number) for number in numbers])
            wait([self._heads_for_rows(number) for number in numbers])

        def permute() -> None:
            for number in numbers:
                self._to_buffer(number)
                self._from_buffer(number)

        def attention() -> None:
            for number in numbers:
                self._attend(number)

        return {"exchange": exchange, "permute": permute, "attention": attention}

    def notes(self) -> tuple[str, ...]:
        """Say how many groups there are."""
        return (f"heads exchanged in {len(self.groups)} groups",) if len(self.groups) > 1 else ()

    def sent_bytes(self) -> int:
        """Bytes of both exchanges, without what stays on this rank."""
        others, item = self.group.world - 1, self.q.element_size()
        there = others * self.mine * (self.heads + 2 * self.heads_kv)
        back = (self.problem.total - self.mine) * self.heads
        return (there + back) * self.problem.dim * item

    def _to_buffer(self, number: int) -> None:
        for x, target in zip((self.q, self.k, self.v), self.groups[number].qkv, strict=True):
            target.copy_(self._heads_of(x, number).transpose(0, 1))

    def _rows_for_heads(self, number: int) -> Any:
        mine, sent = self.groups[number], [self.mine] * self.group.world
        return dist.all_to_all_single(mine.incoming, mine.outgoing.flatten(0, 1), self.sizes, sent, async_op=True)

    def _attend(self, number: int) -> None:
        mine = self.groups[number]
        q, k, v = mine.attended
        mine.results, _ = attend(q, k, v, self.of, self.problem, causal=self.problem.causal)

    def _heads_for_rows(self, number: int) -> Any:
        mine, received = self.groups[number], [self.mine] * self.group.world
        return dist.all_to_all_single(mine.returned.flatten(0, 1), mine.results, received, self.sizes, async_op=True)

    def _from_buffer(self, number: int) -> None:
        self._heads_of(self.out, number).copy_(self.groups[number].returned.transpose(0, 1))

    def _heads_of(self, x: Tensor, number: int) -> Tensor:
        """The heads of a group, of every rank: a view [rows, W, heads, D]."""
        return x.unflatten(1, (self.group.world, len(self.groups), -1))[:, :, number]

    def poison(self) -> None:
        """Also overwrite the buffers: a call that skips an exchange would find the last call's rows there."""
        super().poison()
        for mine in self.groups:
            for x in (mine.outgoing, mine.incoming, mine.returned):
                x.fill_(torch.nan)
