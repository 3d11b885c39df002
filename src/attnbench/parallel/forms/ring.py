"""``ring``: keys and values of the other ranks arrive one rank after another, behind the attention to what is there.

First each rank attends to its own rows: whole sequences, and both its chunks of each cut one, under the causal mask
one launch (its later chunk sees all of its earlier one).  At step i it has the chunks of rank r - i: of an earlier rank
all its queries see the first chunk, of a later rank the queries of its own second chunk see both, without a mask.  What
nobody sees is not sent.  Every chunk goes straight to who needs it and is not passed on.  Outputs are merged by the
logarithms of their sums in fp32.  The exchange of step i + 1 begins before the attention of step i.
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
    """Softmax only: parts of another function are not merged by their sums."""

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
        """As dealt."""
        return self.deal.rows(self.group.rank)

    def run(self) -> None:
        """Attend step by step, the next exchange under way."""
        works = self._begin(1)
        out, lse = attend(self.q, self.k, self.v, self.of_own, self.problem, causal=self.problem.causal)
        assert lse is not None
        for step in self.steps:
            wait(works)
            works = self._begin(step + 1)
            self._add(step, out, lse)
        self.out = out

    def phases(self) -> Mapping[str, Callable[[], Any]]:
        """Two of them: there is no permute; merging is part of attention."""

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
        """Of all steps."""
        rank, world = self.group.rank, self.group.world
        sizes = (x.numel() for step in self.steps for x in self._outgoing((rank + step) % world))
        return sum(sizes) * self.q.element_size()

    def notes(self) -> tuple[str, ...]:
        """How the sequences were dealt."""
        return (dealt(self.deal),)

    def poison(self) -> None:
        """What arrived too."""
        super().poison()
        for buffers in self.incoming.values():
            for x in buffers:
                x.fill_(torch.nan)

    def _places(self) -> list[tuple[int, int, int]]:
        """Of each cut sequence: where here its first chunk begins, its second, and where that ends."""
        found, at = [], self.whole
        for one in self.deal.cut:
            first, second = self.deal.pair_sizes(one, self.group.rank)
            found.append((at, at + first, at + first + second))
            at += first + second
        return found

    def _seen(self, owner: int, reader: int) -> int:
        """How many chunks of a cut sequence of `owner` the queries of `reader` see."""
        return 1 if self.problem.causal and owner < reader else 2

    def _outgoing(self, reader: int) -> list[Tensor]:
        both = self._seen(self.group.rank, reader) == 2
        return [x[start : end if both else middle] for start, middle, end in self.places for x in (self.k, self.v)]

    def _incoming(self, owner: int) -> list[Tensor]:
        """Where keys and values of each cut sequence arrive."""
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
        """Attend to the chunks of a step and merge."""
        rank, arrived = self.group.rank, self.incoming[step]
        later = self.problem.causal and (rank - step) % self.group.world > rank
        for (start, middle, end), k, v in zip(self.places, arrived[::2], arrived[1::2], strict=True):
            rows = slice(middle if later else start, end)
            of = Sequences([rows.stop - rows.start], [k.shape[0]], device=self.group.device)
            if not of.empty and k.shape[0]:
                part, part_lse = attend(self.q[rows], k, v, of, self.problem, causal=False)
                assert part_lse is not None
                merge(out[rows], lse[:, rows], part, part_lse)
