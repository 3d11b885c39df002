"""How large a tile is for so many dims, how many (sequence, head) pairs stay in the L2 together, and grids of programs."""

from __future__ import annotations

from typing import NamedTuple

import triton

FEW = 4
"Work items of a program in the grid of that name: they share its start and end."


def block_of(dim: int) -> int:
    """Columns of a tile for this many dims: a power of two, at least the 16 of a tensor core."""
    return max(16, triton.next_power_of_2(dim))


def group_of(pair_bytes: int, section_mib: float, pairs: int) -> int:
    """(sequence, head) pairs whose reread tensors fit in so many MiB of L2; at least one."""
    return max(1, min(pairs, int(section_mib * 2**20) // max(1, pair_bytes)))


class GridShares(NamedTuple):
    """How a grid shares out its work items, for `hopper.work_range`."""

    programs: int
    stretch: int
    "work items of a stretch"
    sharers: int
    "programs that share one"


def partition_work(grid: str, tiles: int, pairs: int, group: int, processors: int) -> GridShares:
    """How a grid of the name shares out its work items.

    Args:
        grid: tiles: an item each; few: FEW items of a section each, which lie far apart; else one an SM, of all items.
        tiles: work items of a (sequence, head) pair.
        pairs: of these.
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
