"""``allgather``: every rank receives all keys and values of each cut sequence, directly into place.

Queries of chunk c see keys from 0 to the end of chunk c (all of them without a mask), which bottom-right alignment
expresses by lengths alone.  So nothing is merged, and HSTU needs no other kernel.  Whole sequences are
computed while keys and values are in transit.  Nothing is permuted: each chunk is received where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.parallel.attend import Sequences, attend
from attnbench.parallel.deal import Rows, deal
from attnbench.parallel.form import Group, ParallelForm, wait
from attnbench.parallel.problem import Problem


class Form(ParallelForm):
    """Whole sequences are assigned by work; cut ones have two chunks per rank."""

    title = "all-gather of keys and values"

    def __init__(self, problem: Problem, group: Group) -> None:
        self.deal = deal(problem.lengths, group.world, causal=problem.causal)
        super().__init__(problem, group)
        rank, self.whole = group.rank, [problem.lengths[one] for one in self.deal.whole[group.rank]]
        self.of_whole = Sequences(self.whole, device=group.device)
        self.gathered = [
            self.k.new_empty(2, problem.lengths[one], problem.heads_kv, problem.dim) for one in self.deal.cut
        ]
        "keys and values of each cut sequence"
        self.launches = [launch for number in range(len(self.deal.cut)) for launch in self._launches(number, rank)]

    def rows(self) -> list[Rows]:
        """As assigned by `deal`."""
        return self.deal.rows(self.group.rank)

    def run(self) -> None:
        """Start the exchange, compute whole sequences, then the cut ones."""
        works = self._begin()
        self._attend_whole()
        wait(works)
        self._attend_cut()

    def phases(self) -> Mapping[str, Callable[[], Any]]:
        """Exchange and attention; there is no permute."""

        def attention() -> None:
            self._attend_whole()
            self._attend_cut()

        return {"exchange": lambda: wait(self._begin()), "attention": attention}

    def sent_bytes(self) -> int:
        """Its chunks of keys and values, once for each other rank."""
        rows = sum(sum(self.deal.pair_sizes(one, self.group.rank)) for one in self.deal.cut)
        row_bytes = 2 * self.problem.heads_kv * self.problem.dim * self.q.element_size()
        return (self.group.world - 1) * rows * row_bytes

    def notes(self) -> tuple[str, ...]:
        """Describe how the sequences were assigned."""
        return (dealt(self.deal),)

    def poison(self) -> None:
        """Also overwrite the gathered keys and values."""
        super().poison()
        for x in self.gathered:
            x.fill_(torch.nan)

    def _begin(self) -> list[Any]:
        sends: list[tuple[int, Tensor]] = []
        receives: list[tuple[int, Tensor]] = []
        rank, at = self.group.rank, sum(self.whole)
        for place, one in zip(self.gathered, self.deal.cut, strict=True):
            for start, end in self.deal.pair(one, rank):
                for x, into in ((self.k, place[0]), (self.v, place[1])):
                    mine = x[at : at + end - start]
                    into[start:end].copy_(mine)
                    sends += [(other, mine) for other in self._others()]
                at += end - start
            for other in self._others():
                for start, end in self.deal.pair(one, other):
                    receives += [(other, place[0, start:end]), (other, place[1, start:end])]
        return self.group.swap(sends, receives)

    def _others(self) -> list[int]:
        rank, world = self.group.rank, self.group.world
        return [(rank + step) % world for step in range(1, world)]

    def _launches(self, number: int, rank: int) -> list[tuple[int, slice, int, Sequences]]:
        """For a cut sequence: its number, its rows of q on this rank, how many keys they see, and both as lengths."""
        one, device = self.deal.cut[number], self.group.device
        at = sum(self.whole) + sum(sum(self.deal.pair_sizes(before, rank)) for before in self.deal.cut[:number])
        pair = self.deal.pair(one, rank)
        if not self.problem.causal:
            queries, keys = sum(self.deal.pair_sizes(one, rank)), self.problem.lengths[one]
            return [(number, slice(at, at + queries), keys, Sequences([queries], [keys], device=device))]
        found = []
        for start, end in pair:
            queries = end - start
            found.append((number, slice(at, at + queries), end, Sequences([queries], [end], device=device)))
            at += queries
        return found

    def _attend_whole(self) -> None:
        rows = slice(0, sum(self.whole))
        if rows.stop:
            q, k, v = self.q[rows], self.k[rows], self.v[rows]
            self.out[rows], _ = attend(q, k, v, self.of_whole, self.problem, causal=self.problem.causal)

    def _attend_cut(self) -> None:
        for number, rows, keys, of in self.launches:
            if not of.empty:
                k, v = self.gathered[number][:, :keys]
                self.out[rows], _ = attend(self.q[rows], k, v, of, self.problem, causal=self.problem.causal)


def dealt(found: Any) -> str:
    """Describe an assignment."""
    whole = "+".join(str(len(one)) for one in found.whole)
    return f"{len(found.cut)} of {len(found.lengths)} sequences cut, {whole} dealt whole; nothing padded"
