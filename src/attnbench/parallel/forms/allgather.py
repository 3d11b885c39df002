"""``allgather``: every rank receives the keys and values of each cut sequence that its queries see, directly into place.

Queries of chunk c see keys from 0 to the end of chunk c (all of them without a mask), which bottom-right alignment
expresses by lengths alone.  So nothing is merged, and HSTU needs no other kernel.  Nothing is permuted: each chunk is
received where it belongs.  A row's keys and values are adjacent, as a fused projection writes them, so that a chunk is one
message: messages of 16 MiB reach less than half the speed of those of 256 MiB on NVLink.

Under a mask a rank's earlier chunk sees only chunks of earlier ranks.  What comes from these and what comes from later
ranks are therefore two exchanges, on two communicators: whole sequences are computed during both, and the queries of
the earlier chunk while the keys of the second are in transit.

A launch of the later chunk alone ends badly: all its query tiles are long, so most SMs wait for the last ones.  If little
is exchanged (`JOINT_HEADS`), both chunks are therefore one launch after one exchange, the later one first: the short
tiles of the earlier one fill the end.  To the kernel they are two sequences, so the keys that the earlier one sees are
there twice, the second time behind those of the later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnbench.parallel.attend import Sequences, attend
from attnbench.parallel.deal import Rows, deal
from attnbench.parallel.form import Group, ParallelForm, wait
from attnbench.parallel.problem import Problem

JOINT_HEADS = 2.5
"""Both chunks are one launch up to so many received KV heads, (W - 1) / W of all.  An estimate for a pair of H200: for each
of them the exchange takes a fifth to an eighth of the longest query tile's time, and the end of a separate launch leaves
SMs idle for some two fifths of it on average.  What is exchanged and that tile both grow with the length and the dim."""
EARLIER, LATER = "earlier", "later"
"Ranks that chunks come from."
Launch = tuple[int, slice, int, Sequences]
"Number of a cut sequence, its rows of q on this rank, how many keys they see, and both as lengths."


class Stage(NamedTuple):
    """An exchange, and what is computed after it."""

    group: Group
    "ranks, with the exchange's communicator"
    sides: tuple[str, ...]
    launches: list[Launch]


class Form(ParallelForm):
    """Whole sequences are assigned by work; cut ones have two chunks per rank."""

    title = "all-gather of keys and values"

    def __init__(self, problem: Problem, group: Group) -> None:
        self.deal = deal(problem.lengths, group.world, causal=problem.causal)
        self.joint = problem.causal and problem.heads_kv * (group.world - 1) <= JOINT_HEADS * group.world
        "whether both chunks of a sequence are one launch"
        super().__init__(problem, group)
        self.kv = torch.stack([self.k, self.v], 1)
        self.k, self.v = self.kv.unbind(1)
        self.whole = [problem.lengths[one] for one in self.deal.whole[group.rank]]
        self.of_whole = Sequences(self.whole, device=group.device)
        self.copied = [self.deal.pair(one, group.rank)[0][1] if self.joint else 0 for one in self.deal.cut]
        "of each cut sequence, keys that are there twice: those that the earlier chunk sees"
        self.gathered = [
            self.kv.new_empty(problem.lengths[one] + more, *self.kv.shape[1:])
            for one, more in zip(self.deal.cut, self.copied, strict=True)
        ]
        "keys and values of each cut sequence"
        launches = [self._launches(number) for number in range(len(self.deal.cut))]
        last = [one[-1] for one in launches]
        staged = problem.causal and not self.joint
        self.stages = (
            [Stage(group, (EARLIER,), [one[0] for one in launches]), Stage(group.beside(), (LATER,), last)]
            if staged
            else [Stage(group, (EARLIER, LATER), last)]
        )

    def rows(self) -> list[Rows]:
        """As assigned by `deal`; of two chunks in one launch the later first."""
        found, pairs = self.deal.rows(self.group.rank), len(self.deal.whole[self.group.rank])
        if self.joint:
            for at in range(pairs, len(found), 2):
                found[at : at + 2] = reversed(found[at : at + 2])
        return found

    def run(self) -> None:
        """Start all exchanges, then compute: whole sequences, and after each exchange what needs no further one."""
        works = self._begin()
        self._attend_whole()
        for stage, one in zip(self.stages, works, strict=True):
            wait(one)
            self._repeat()
            self._attend_cut(stage.launches)

    def phases(self) -> Mapping[str, Callable[[], Any]]:
        """Exchange and attention; there is no permute."""

        def exchange() -> None:
            for works in self._begin():
                wait(works)
            self._repeat()

        def attention() -> None:
            self._attend_whole()
            for stage in self.stages:
                self._attend_cut(stage.launches)

        return {"exchange": exchange, "attention": attention}

    def sent_bytes(self) -> int:
        """Its chunks of keys and values, to each rank that sees them."""
        sizes = (x.numel() for stage in self.stages for _, x in self._sends(stage.sides))
        return sum(sizes) * self.q.element_size()

    def notes(self) -> tuple[str, ...]:
        """Describe how the sequences were assigned, and whether their chunks are one launch."""
        joint = ("both chunks of a cut sequence in one launch",) if self.joint and self.deal.cut else ()
        return (dealt(self.deal), *joint)

    def poison(self) -> None:
        """Also overwrite the gathered keys and values."""
        super().poison()
        for x in self.gathered:
            x.fill_(torch.nan)

    def _begin(self) -> list[list[Any]]:
        """Start the exchange of each stage, then copy the rank's own chunks into place."""
        works = [stage.group.swap(self._sends(stage.sides), self._receives(stage.sides)) for stage in self.stages]
        for number, one in enumerate(self.deal.cut):
            pair, own, into = self.deal.pair(one, self.group.rank), self._own(number), self.gathered[number]
            for (start, end), rows in zip(pair, own, strict=True):
                into[start:end].copy_(self.kv[rows])
            if self.joint:
                (start, end), (_, after) = pair
                into[after + start : after + end].copy_(self.kv[own[0]])
        return works

    def _repeat(self) -> None:
        """For chunks in one launch, copy the received keys that the earlier one sees behind those of the later one."""
        for number, one in enumerate(self.deal.cut if self.joint else ()):
            (start, _), (_, after) = self.deal.pair(one, self.group.rank)
            if start:
                place = self.gathered[number]
                place[after : after + start].copy_(place[:start])

    def _own(self, number: int) -> tuple[slice, slice]:
        """Rows on this rank of its earlier and its later chunk of a cut sequence."""
        sizes = [self.deal.pair_sizes(one, self.group.rank) for one in self.deal.cut[: number + 1]]
        at = sum(self.whole) + sum(map(sum, sizes[:-1]))
        earlier, later = sizes[-1]
        if self.joint:
            return slice(at + later, at + later + earlier), slice(at, at + later)
        return slice(at, at + earlier), slice(at + earlier, at + earlier + later)

    def _seen(self, one: int, owner: int, reader: int) -> Sequence[Rows]:
        """Chunks of a cut sequence of `owner` that queries of `reader` see."""
        pair = self.deal.pair(one, owner)
        return pair[:1] if self.problem.causal and owner < reader else pair

    def _sends(self, sides: tuple[str, ...]) -> list[tuple[int, Tensor]]:
        """What others receive of this rank; `sides` are those that it is on, seen from them."""
        rank = self.group.rank
        readers = [reader for reader in self._others() if (EARLIER if rank < reader else LATER) in sides]
        return [
            (reader, self.kv[rows])
            for number, one in enumerate(self.deal.cut)
            for reader in readers
            for rows in self._own(number)[: len(self._seen(one, rank, reader))]
        ]

    def _receives(self, sides: tuple[str, ...]) -> list[tuple[int, Tensor]]:
        rank = self.group.rank
        owners = [owner for owner in self._others() if (EARLIER if owner < rank else LATER) in sides]
        return [
            (owner, into[start:end])
            for into, one in zip(self.gathered, self.deal.cut, strict=True)
            for owner in owners
            for start, end in self._seen(one, owner, rank)
        ]

    def _others(self) -> list[int]:
        rank, world = self.group.rank, self.group.world
        return [(rank + step) % world for step in range(1, world)]

    def _launches(self, number: int) -> list[Launch]:
        """Of a cut sequence: under a mask one for each chunk, or one for both."""
        one, device = self.deal.cut[number], self.group.device
        (earlier, later), own = self.deal.pair(one, self.group.rank), self._own(number)
        if not self.problem.causal:
            rows, keys = slice(own[0].start, own[1].stop), self.problem.lengths[one]
            return [(number, rows, keys, Sequences([rows.stop - rows.start], [keys], device=device))]
        queries, keys_of = [end - start for start, end in (earlier, later)], [earlier[1], later[1]]
        if self.joint:
            of = Sequences(queries[::-1], keys_of[::-1], device=device)
            return [(number, slice(own[1].start, own[0].stop), sum(keys_of), of)]
        return [
            (number, rows, keys, Sequences([count], [keys], device=device))
            for rows, count, keys in zip(own, queries, keys_of, strict=True)
        ]

    def _attend_whole(self) -> None:
        rows = slice(0, sum(self.whole))
        if rows.stop:
            q, k, v = self.q[rows], self.k[rows], self.v[rows]
            self.out[rows], _ = attend(q, k, v, self.of_whole, self.problem, causal=self.problem.causal)

    def _attend_cut(self, launches: Sequence[Launch]) -> None:
        for number, rows, keys, of in launches:
            if not of.empty:
                k, v = self.gathered[number][:keys].unbind(1)
                out, _ = attend(self.q[rows], k, v, of, self.problem, causal=self.problem.causal)
                if out.shape == self.out.shape:
                    self.out = out
                else:
                    self.out[rows] = out


def dealt(found: Any) -> str:
    """Describe an assignment."""
    whole = "+".join(str(len(one)) for one in found.whole)
    return f"{len(found.cut)} of {len(found.lengths)} sequences cut, {whole} dealt whole; nothing padded"
