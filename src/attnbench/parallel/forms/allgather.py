"""``allgather``: every rank receives the keys and values of each cut sequence that its queries see, directly into place.

Queries of chunk c see keys from 0 to the end of chunk c (all of them without a mask), which bottom-right alignment
expresses by lengths alone.  So nothing is merged, and HSTU needs no other kernel.  Nothing is permuted: each chunk is
received where it belongs.

Under a mask a rank's first chunk sees only chunks of earlier ranks.  What comes from these and what comes from later
ranks are therefore two exchanges, on two communicators: whole sequences are computed during both, and the queries of
the first chunk while the keys of the second are in transit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from attnbench.parallel.attend import Sequences, attend
from attnbench.parallel.deal import Rows, deal
from attnbench.parallel.form import Group, ParallelForm, wait
from attnbench.parallel.problem import Problem

EARLIER, LATER = "earlier", "later"
"Ranks that chunks come from."
Launch = tuple[int, slice, int, Sequences]
"Number of a cut sequence, its rows of q on this rank, how many keys they see, and both as lengths."


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
        self.groups = {EARLIER: group, LATER: group.beside()}
        launches = [self._launches(number, rank) for number in range(len(self.deal.cut))]
        self.first = [one[0] for one in launches if len(one) > 1]
        "of the first chunks, where the second has a launch of its own"
        self.rest = [one[-1] for one in launches]

    def rows(self) -> list[Rows]:
        """As assigned by `deal`."""
        return self.deal.rows(self.group.rank)

    def run(self) -> None:
        """Start both exchanges, then compute: whole sequences, first chunks, and after the second exchange the rest."""
        works = self._begin()
        self._attend_whole()
        wait(works[EARLIER])
        self._attend_cut(self.first)
        wait(works[LATER])
        self._attend_cut(self.rest)

    def phases(self) -> Mapping[str, Callable[[], Any]]:
        """Exchange and attention; there is no permute."""

        def exchange() -> None:
            for works in self._begin().values():
                wait(works)

        def attention() -> None:
            self._attend_whole()
            self._attend_cut(self.first)
            self._attend_cut(self.rest)

        return {"exchange": exchange, "attention": attention}

    def sent_bytes(self) -> int:
        """Its chunks of keys and values, to each rank that sees them."""
        sizes = (x.numel() for side in (EARLIER, LATER) for _, x in self._sends(side))
        return sum(sizes) * self.q.element_size()

    def notes(self) -> tuple[str, ...]:
        """Describe how the sequences were assigned."""
        return (dealt(self.deal),)

    def poison(self) -> None:
        """Also overwrite the gathered keys and values."""
        super().poison()
        for x in self.gathered:
            x.fill_(torch.nan)

    def _begin(self) -> dict[str, list[Any]]:
        """Start what comes from earlier ranks and what comes from later ones, then copy the rank's own chunks into place."""
        works = {side: group.swap(self._sends(side), self._receives(side)) for side, group in self.groups.items()}
        at = sum(self.whole)
        for place, one in zip(self.gathered, self.deal.cut, strict=True):
            for start, end in self.deal.pair(one, self.group.rank):
                for x, into in zip((self.k, self.v), place, strict=True):
                    into[start:end].copy_(x[at : at + end - start])
                at += end - start
        return works

    def _seen(self, one: int, owner: int, reader: int) -> Sequence[Rows]:
        """Chunks of a cut sequence of `owner` that queries of `reader` see."""
        pair = self.deal.pair(one, owner)
        return pair[:1] if self.problem.causal and owner < reader else pair

    def _sends(self, side: str) -> list[tuple[int, Tensor]]:
        """What others receive of this rank; `side` is where it is, seen from them."""
        rank, at = self.group.rank, sum(self.whole)
        readers = [reader for reader in self._others() if (rank < reader) == (side == EARLIER)]
        found: list[tuple[int, Tensor]] = []
        for one in self.deal.cut:
            _, middle, end = accumulate(self.deal.pair_sizes(one, rank), initial=at)
            for reader in readers:
                both = len(self._seen(one, rank, reader)) == 2
                chunks = (slice(at, middle), slice(middle, end)) if both else (slice(at, middle),)
                found += [(reader, x[rows]) for rows in chunks for x in (self.k, self.v)]
            at = end
        return found

    def _receives(self, side: str) -> list[tuple[int, Tensor]]:
        rank = self.group.rank
        owners = [owner for owner in self._others() if (owner < rank) == (side == EARLIER)]
        return [
            (owner, into[start:end])
            for place, one in zip(self.gathered, self.deal.cut, strict=True)
            for owner in owners
            for start, end in self._seen(one, owner, rank)
            for into in place
        ]

    def _others(self) -> list[int]:
        rank, world = self.group.rank, self.group.world
        return [(rank + step) % world for step in range(1, world)]

    def _launches(self, number: int, rank: int) -> list[Launch]:
        """Of a cut sequence: under a mask one for each chunk."""
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

    def _attend_cut(self, launches: Sequence[Launch]) -> None:
        for number, rows, keys, of in launches:
            if not of.empty:
                k, v = self.gathered[number][:, :keys]
                self.out[rows], _ = attend(self.q[rows], k, v, of, self.problem, causal=self.problem.causal)


def dealt(found: Any) -> str:
    """Describe an assignment."""
    whole = "+".join(str(len(one)) for one in found.whole)
    return f"{len(found.cut)} of {len(found.lengths)} sequences cut, {whole} dealt whole; nothing padded"
