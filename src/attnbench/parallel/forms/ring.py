"""``ring``: keys and values of the other ranks arrive one rank after another, overlapped with attention.

First each rank computes attention over its own rows: whole sequences, and both its chunks of each cut one, in one
launch under the causal mask (its later chunk sees all of its earlier one).  At step i it has the chunks of rank r - i.
If that is an earlier rank, all its queries see the first chunk; if it is a later one, the queries of its own second
chunk see both, without a mask.  Chunks that are not visible are not sent.  Every chunk is sent directly to its readers
and not forwarded.  Outputs are merged by the function's rule (`parallel/merge`): softmax by log-sum-exps, HSTU by adding
sums.  The exchange of step i + 1 starts before the attention of step i.
(Liu et al. 2023, arXiv:2310.01889; zigzag as in Brandon et al. 2023, arXiv:2311.09431.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.parallel.attend import Sequences
from attnbench.parallel.deal import Rows, deal
from attnbench.parallel.form import Group, ParallelForm, wait
from attnbench.parallel.forms.allgather import dealt
from attnbench.parallel.merge import MERGED, Merged, Own
from attnbench.parallel.problem import Problem


class Form(ParallelForm):
    """Whole sequences are assigned by work; cut ones have two chunks per rank."""

    title = "ring, zigzag"

    def __init__(self, problem: Problem, group: Group) -> None:
        self.deal = deal(problem.lengths, group.world, causal=problem.causal)
        super().__init__(problem, group)
        rank = group.rank
        lengths, count = self.deal.local_lengths(rank), len(self.deal.whole[rank])
        self.own = Own.of(lengths[:count], lengths[count:], group.device)
        self.whole = sum(lengths[:count])
        self.places = self._places()
        self.steps = range(1, group.world if self.deal.cut else 1)
        self.incoming = {step: self._incoming((rank - step) % group.world) for step in self.steps}
        self.launches = {step: self._launches(step) for step in self.steps}

    def rows(self) -> list[Rows]:
        """As assigned by `deal`."""
        return self.deal.rows(self.group.rank)

    def run(self) -> None:
        """Compute attention step by step, with the next exchange in flight."""
        works = self._begin(1)
        merged = self._over_own()
        for step in self.steps:
            wait(works)
            works = self._begin(step + 1)
            self._add(step, merged)
        self.out = merged.finish()

    def phases(self) -> Mapping[str, Callable[[], Any]]:
        """Exchange and attention; there is no permute, and merging is part of attention."""

        def exchange() -> None:
            for step in self.steps:
                wait(self._begin(step))

        def attention() -> None:
            merged = self._over_own()
            for step in self.steps:
                self._add(step, merged)
            merged.finish()

        return {"exchange": exchange, "attention": attention}

    def sent_bytes(self) -> int:
        """Bytes sent in all steps."""
        rank, world = self.group.rank, self.group.world
        sizes = (x.numel() for step in self.steps for x in self._outgoing((rank + step) % world))
        return sum(sizes) * self.q.element_size()

    def notes(self) -> tuple[str, ...]:
        """Describe how the sequences were assigned."""
        return (dealt(self.deal),)

    def poison(self) -> None:
        """Also overwrite the received keys and values."""
        super().poison()
        for buffers in self.incoming.values():
            for x in buffers:
                x.fill_(torch.nan)

    def _places(self) -> list[tuple[int, int, int]]:
        """For each cut sequence: local start of its first chunk and of its second, and the end of that."""
        found, at = [], self.whole
        for one in self.deal.cut:
            first, second = self.deal.pair_sizes(one, self.group.rank)
            found.append((at, at + first, at + first + second))
            at += first + second
        return found

    def _seen(self, owner: int, reader: int) -> int:
        """Return how many chunks of a cut sequence of `owner` the queries of `reader` see."""
        return 1 if self.problem.causal and owner < reader else 2

    def _outgoing(self, reader: int) -> list[Tensor]:
        both = self._seen(self.group.rank, reader) == 2
        return [x[start : end if both else middle] for start, middle, end in self.places for x in (self.k, self.v)]

    def _incoming(self, owner: int) -> list[Tensor]:
        """Buffers for keys and values of each cut sequence."""
        seen = self._seen(owner, self.group.rank)
        rows = [sum(self.deal.pair_sizes(one, owner)[:seen]) for one in self.deal.cut]
        return [self.k.new_empty(count, *self.k.shape[1:]) for count in rows for _ in range(2)]

    def _begin(self, step: int) -> list[Any]:
        if step not in self.steps:
            return []
        rank, world = self.group.rank, self.group.world
        to, source = (rank + step) % world, (rank - step) % world
        return self.group.swap([(to, x) for x in self._outgoing(to)], [(source, x) for x in self.incoming[step]])

    def _launches(self, step: int) -> list[tuple[slice, Tensor, Tensor, Sequences]]:
        """Of a step: for each cut sequence the rows whose queries see what arrives, its keys and values, and the lengths."""
        rank, arrived = self.group.rank, self.incoming[step]
        later = self.problem.causal and (rank - step) % self.group.world > rank
        found = []
        for (start, middle, end), k, v in zip(self.places, arrived[::2], arrived[1::2], strict=True):
            rows = slice(middle if later else start, end)
            if rows.stop > rows.start and k.shape[0]:
                of = Sequences([rows.stop - rows.start], [k.shape[0]], device=self.group.device)
                found.append((rows, k, v, of))
        return found

    def _over_own(self) -> Merged:
        return MERGED[self.problem.function](self.q, self.k, self.v, self.out, self.own, self.problem)

    def _add(self, step: int, merged: Merged) -> None:
        """Compute attention over the chunks of a step and merge the result."""
        for rows, k, v, of in self.launches[step]:
            merged.add(rows, self.q[rows], k, v, of)
