"""Distribution of rows over ranks: sequences are assigned whole by work, and long ones are split over all ranks.

A split ("cut") sequence has 2 W chunks for W ranks; rank r has chunk r and chunk 2 W - 1 - r (zigzag), so that under a
causal mask every rank computes as many pairs.  Chunks differ by at most one row: nothing is padded, and a chunk of a
sequence shorter than 2 W may be empty.

Imports without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

TOLERANCE = 1.03
"Load of the busiest rank over the mean at which no further sequence is cut: communication would cost more."

Rows = tuple[int, int]
"First and last (exclusive) row of the packed tensors."


@dataclass(frozen=True)
class Deal:
    """Assignment of a problem's sequences to ranks."""

    lengths: tuple[int, ...]
    world: int
    whole: tuple[tuple[int, ...], ...]
    "for each rank, the sequences it has whole, in their order"
    cut: tuple[int, ...]
    "sequences of which every rank has two chunks, in their order"

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First row of each sequence in the packed tensors."""
        found = [0]
        for length in self.lengths:
            found.append(found[-1] + length)
        return tuple(found)

    def chunk(self, sequence: int, number: int) -> Rows:
        """Rows of a chunk, counted within its sequence."""
        length, count = self.lengths[sequence], 2 * self.world
        return number * length // count, (number + 1) * length // count

    def pair(self, sequence: int, rank: int) -> tuple[Rows, Rows]:
        """Both chunks of a rank, the earlier first."""
        return self.chunk(sequence, rank), self.chunk(sequence, 2 * self.world - 1 - rank)

    def pair_sizes(self, sequence: int, rank: int) -> tuple[int, int]:
        """Number of rows of both chunks."""
        (a, b), (c, d) = self.pair(sequence, rank)
        return b - a, d - c

    def rows(self, rank: int) -> list[Rows]:
        """Rows of the packed tensors that a rank has, in its own order: whole sequences, then the pairs of chunks."""
        found = [(self.starts[one], self.starts[one + 1]) for one in self.whole[rank]]
        for one in self.cut:
            found += [(self.starts[one] + a, self.starts[one] + b) for a, b in self.pair(one, rank)]
        return found

    def local_lengths(self, rank: int) -> list[int]:
        """Number of rows of each sequence that a rank has, in its order; both chunks of a sequence are adjacent."""
        return [self.lengths[one] for one in self.whole[rank]] + [sum(self.pair_sizes(one, rank)) for one in self.cut]


def deal(lengths: Sequence[int], world: int, *, causal: bool) -> Deal:
    """Assign sequences to ranks: longest first to the least loaded rank; as few are cut as balance needs.

    Args:
        lengths: rows of each sequence.
        world: number of ranks, at least 1.
        causal: whether a row sees no later one.
    """
    work = [length * (length + 1) // 2 if causal else length * length for length in lengths]
    order = sorted(range(len(lengths)), key=lambda one: (-work[one], one))
    mean = sum(work) / world
    for count in range(len(order) + 1):
        whole, loads = _dealt(order[count:], work, world)
        evenly = sum(work[one] for one in order[:count]) / world
        if max(loads) + evenly <= TOLERANCE * mean:
            break
    return Deal(tuple(lengths), world, tuple(map(tuple, map(sorted, whole))), tuple(sorted(order[:count])))


def even_rows(total: int, world: int) -> list[Rows]:
    """Return the rows of each rank if they are distributed regardless of sequences."""
    return [(rank * total // world, (rank + 1) * total // world) for rank in range(world)]


def _dealt(order: Sequence[int], work: Sequence[int], world: int) -> tuple[list[list[int]], list[int]]:
    whole: list[list[int]] = [[] for _ in range(world)]
    loads = [0] * world
    for one in order:
        least = min(range(world), key=lambda rank: (loads[rank], len(whole[rank]), rank))
        whole[least].append(one)
        loads[least] += work[one]
    return whole, loads
