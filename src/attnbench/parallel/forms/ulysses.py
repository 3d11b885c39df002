"""``ulysses``: an all-to-all from rows to heads, attention of each rank over its heads, an all-to-all back to rows.

Queries, keys and values of the heads of each rank are sent in one buffer [W, rows, (H + 2 G) / W, D] by one all-to-all.
What arrives is in the order of rows, so attention reads it through strides, and its output is sent as it is.  Each
direction needs one permute: into that buffer, and of the received outputs.
(Jacobs et al. 2023, arXiv:2309.14509.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from attnbench.parallel.attend import Sequences, attend
from attnbench.parallel.deal import Rows, even_rows
from attnbench.parallel.form import Group, ParallelForm
from attnbench.parallel.problem import Problem


class Form(ParallelForm):
    """Needs H and G divisible by W; rows are distributed regardless of sequences."""

    title = "all-to-all of heads and rows"

    def __init__(self, problem: Problem, group: Group) -> None:
        super().__init__(problem, group)
        world = group.world
        self.sizes = [end - start for start, end in even_rows(problem.total, world)]
        self.mine = self.sizes[group.rank]
        self.heads, self.heads_kv = problem.heads // world, problem.heads_kv // world
        every, like = self.heads + 2 * self.heads_kv, self.q
        self.outgoing = like.new_empty(world, self.mine, every, problem.dim)
        self.incoming = like.new_empty(problem.total, every, problem.dim)
        self.results = like.new_empty(problem.total, self.heads, problem.dim)
        self.returned = like.new_empty(world, self.mine, self.heads, problem.dim)
        self.of = Sequences(problem.lengths, device=group.device)

    def rows(self) -> list[Rows]:
        """An equal part, in order."""
        return [even_rows(self.problem.total, self.group.world)[self.group.rank]]

    def run(self) -> None:
        """Permute, exchange, attend, exchange, permute."""
        self._to_buffer()
        self._rows_for_heads()
        self._attend()
        self._heads_for_rows()
        self._from_buffer()

    def phases(self) -> Mapping[str, Callable[[], Any]]:
        """Exchange, permute and attention, each separately."""

        def exchange() -> None:
            self._rows_for_heads()
            self._heads_for_rows()

        def permute() -> None:
            self._to_buffer()
            self._from_buffer()

        return {"exchange": exchange, "permute": permute, "attention": self._attend}

    def sent_bytes(self) -> int:
        """Bytes of both exchanges, without what stays on this rank."""
        others, item = self.group.world - 1, self.q.element_size()
        there = others * self.mine * (self.heads + 2 * self.heads_kv)
        back = (self.problem.total - self.mine) * self.heads
        return (there + back) * self.problem.dim * item

    def _to_buffer(self) -> None:
        heads, ends = self.heads, (self.heads, self.heads + self.heads_kv, self.heads + 2 * self.heads_kv)
        for x, start, end in ((self.q, 0, heads), (self.k, heads, ends[1]), (self.v, ends[1], ends[2])):
            by_rank = x.unflatten(1, (self.group.world, -1)).transpose(0, 1)
            self.outgoing[:, :, start:end].copy_(by_rank)

    def _rows_for_heads(self) -> None:
        sent = [self.mine] * self.group.world
        dist.all_to_all_single(self.incoming, self.outgoing.flatten(0, 1), self.sizes, sent)

    def _attend(self) -> None:
        q, k, v = self.incoming.split([self.heads, self.heads_kv, self.heads_kv], 1)
        self.results, _ = attend(q, k, v, self.of, self.problem, causal=self.problem.causal)

    def _heads_for_rows(self) -> None:
        received = [self.mine] * self.group.world
        dist.all_to_all_single(self.returned.flatten(0, 1), self.results, received, self.sizes)

    def _from_buffer(self) -> None:
        self.out.copy_(self.returned.transpose(0, 1).flatten(1, 2))

    def poison(self) -> None:
        """Also overwrite the buffers: a call that skips an exchange would find the last call's rows there."""
        super().poison()
        for x in (self.outgoing, self.incoming, self.returned):
            x.fill_(torch.nan)
