"""``yunchang``: feifeibear/long-context-attention (USP): Ulysses over as many ranks as the heads allow, else a ring."""

from __future__ import annotations

from math import gcd

from attnbench.parallel.deal import Rows
from attnbench.parallel.form import Group, ParallelForm
from attnbench.parallel.problem import Problem


class Form(ParallelForm):
    """Sequences of one length, split into 2 W chunks; tensors [B, S / W, H, D]."""

    title = "USP (yunchang)"

    def __init__(self, problem: Problem, group: Group) -> None:
        self.heads_over = gcd(problem.heads_kv, group.world)
        "number of ranks of an all-to-all"
        super().__init__(problem, group)
        from yunchang import LongContextAttention, set_seq_parallel_pg

        set_seq_parallel_pg(self.heads_over, group.world // self.heads_over, group.rank, group.world)
        self.attention = LongContextAttention(ring_impl_type="zigzag" if problem.causal else "basic")

    def rows(self) -> list[Rows]:
        """As in its own `EXTRACT_FUNC_DICT`: chunks of a ring's rank, split again for the all-to-all."""
        problem, rank, world = self.problem, self.group.rank, self.group.world
        length, ring = problem.lengths[0], world // self.heads_over
        part = length // world
        at, within = divmod(rank, self.heads_over)
        if not problem.causal:
            local = [(rank * part, (rank + 1) * part)]
        else:
            step = length // (2 * ring)
            both = [(at * step, (at + 1) * step), ((2 * ring - 1 - at) * step, (2 * ring - at) * step)]
            local = cut(both, within * part, (within + 1) * part)
        return [(start + a, start + b) for start in range(0, problem.total, length) for a, b in local]

    def run(self) -> None:
        """Call its layer on this rank's rows."""
        q, k, v = (x.unflatten(0, (len(self.problem.lengths), -1)) for x in (self.q, self.k, self.v))
        problem = self.problem
        self.out = self.attention(q, k, v, softmax_scale=problem.scale, causal=problem.causal).flatten(0, 1)

    def notes(self) -> tuple[str, ...]:
        """Describe the mesh."""
        return (f"all-to-all over {self.heads_over}, ring over {self.group.world // self.heads_over} ranks",)


def cut(pieces: list[Rows], start: int, end: int) -> list[Rows]:
    """Return rows `start` to `end` of consecutive pieces."""
    found, at = [], 0
    for first, last in pieces:
        low, high = max(start - at, 0), min(end - at, last - first)
        if low < high:
            found.append((first + low, first + high))
        at += last - first
    return found
