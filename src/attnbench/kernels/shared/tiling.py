"""Tile widths, sections of (sequence, head) pairs that stay in the L2 together, and how grids divide work items."""

from __future__ import annotations

from typing import Any, NamedTuple

FEW = 4
"Work items of a program in the grid `few`, which share its start and end."


def block_of(dim: int) -> int:
    """Columns of a tile for this many dims: a power of two, at least the 16 of a tensor core."""
    return max(16, 1 << (dim - 1).bit_length())


def group_of(pair_bytes: int, section_mib: float, pairs: int) -> int:
    """(sequence, head) pairs whose reread tensors fit into this much L2; at least one."""
    return max(1, min(pairs, int(section_mib * 2**20) // max(1, pair_bytes)))


class Grid(NamedTuple):
    """What tiles of queries a call has, and on how many SMs."""

    heads: int
    "query heads of all sequences"
    seqlen_q: int
    "most queries of a sequence"
    processors: int = 132
    "SMs of the card; those of an H100 or H200 in SXM form"

    def rounds(self, config: Any) -> int:
        """Rounds over the SMs that the tiles of a configuration with `block_m` rows take, rounded up."""
        rounds: int = -(-self.heads * -(-self.seqlen_q // config.block_m) // self.processors)
        return rounds


class GridShares(NamedTuple):
    """How a grid divides its work items among programs, for `hopper.work_range`."""

    programs: int
    stretch: int
    "work items of a stretch"
    sharers: int
    "programs that share a stretch"


def partition_work(grid: str, tiles: int, pairs: int, group: int, processors: int) -> GridShares:
    """How the grid with this name divides its work items.

    Args:
        grid: tiles: one item per program; few: FEW items of a section per program, far apart; else one program per SM.
        tiles: work items of a (sequence, head) pair.
        pairs: number of pairs.
        group: pairs of a section.
        processors: SMs of the card.
    """
    items = tiles * pairs
    if grid == "tiles":
        return GridShares(programs=items, stretch=items, sharers=items)
    if grid == "few":
        stretch = tiles * group
        sharers = -(-stretch // FEW)
        programs = items // stretch * sharers + -(-(items % stretch) // FEW)
        return GridShares(programs=programs, stretch=stretch, sharers=sharers)
    programs = min(items, processors)
    return GridShares(programs=programs, stretch=items, sharers=programs)
