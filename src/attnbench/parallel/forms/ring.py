"""``ring``: keys and values of the other ranks arrive one rank after another, overlapped with attention.

First each rank computes attention over its own rows: whole sequences, and both its chunks of each cut one, in one
launch under the causal mask (its later chunk sees all of its earlier one).  At step i it has the chunks of rank r - i.
If that is an earlier rank, all its queries see the first chunk; if it is a later one, the queries of its own second
chunk see both, without a mask.  Chunks that are not visible are not sent.  Every chunk is sent directly to its readers
and not forwarded.  Outputs are merged by their log-sum-exp in fp32.  The exchange of step i + 1 starts before the
attention of step i.
(Liu et al. 2023, arXiv:2310.01889; zigzag as in Brandon et al. 2023, arXiv:2311.09431.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.parallel.attend import Sequences, attend
from attnbench.parallel.deal import Rows, deal
from attnbench.parallel.form import Group, ParallelForm, wait
from attnbench.parallel.forms.allgather import dealt
from attnbench.parallel.merge import merge
from attnbench.parallel.problem import Problem


class Form(ParallelForm):
    """Softmax only: outputs of other functions cannot be merged by log-sum-exp."""

    title = "ring, zigzag"

    def __init__(self, problem: Problem, group: Group) -> None:
        self.deal = deal(problem.lengths, group.world, causal=problem.causal)
        super().__init__(problem, group)
        rank = group.rank
        self.of_own = Sequences(self.deal.local_lengths(rank), device=group.device)
        self.whole = sum(problem.lengths[one] for one in self.deal.whole[rank])
        self.places = self._places()
        self.steps = range(1, group.world if self.deal.cut else 1)
        self.incoming = {step: self._incoming((rank - step) % group.world) for step in self.steps}

    def rows(self) -> list[Rows]:
        """As assigned by `deal`."""
        return self.deal.rows(self.group.rank)

    def run(self) -> None:
        """Compute attention step by step, with the next exchange in flight."""
        works = self._begin(1)
        out, lse = attend(self.q, self.k, self.v, self.of_own, self.problem, causal=self.problem.causal)
        assert lse is not None
        for step in self.steps:
            wait(works)
            works = self._begin(step + 1)
            self._add(step, out, lse)
        self.out = out

    def phases(self) -> Mapping[str, Callable[[], Any]]:
        """Exchange and attention; there is no permute, and merging is part of attention."""

        def exchange() -> None:
            for step in self.steps:
                wait(self._begin(step))

        def attention() -> None:
            out, lse = attend(self.q, self.k, self.v, self.of_own, self.problem, causal=self.problem.causal)
            assert lse is not None
            for step in self.steps:
                self._add(step, out, lse)

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

    def _add(self, step: int, out: Tensor, lse: Tensor) -> None:
        """Compute attention over the chunks of a step and merge the result."""
        rank, arrived = self.group.rank, self.incoming[step]
        later = self.problem.causal and (rank - step) % self.group.world > rank
        for (start, middle, end), k, v in zip(self.places, arrived[::2], arrived[1::2], strict=True):
            rows = slice(middle if later else start, end)
            of = Sequences([rows.stop - rows.start], [k.shape[0]], device=self.group.device)
            if not of.empty and k.shape[0]:
                part, part_lse = attend(self.q[rows], k, v, of, self.problem, causal=False)
                assert part_lse is not None
                merge(out[rows], lse[:, rows], part, part_lse)
