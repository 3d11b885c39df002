"""How large a tile is for so many dims, and how many (sequence, head) pairs stay in the L2 together."""

from __future__ import annotations

import triton


def block_of(dim: int) -> int:
    """Columns of a tile for this many dims: a power of two, at least the 16 of a tensor core."""
    return max(16, triton.next_power_of_2(dim))


def group_of(pair_bytes: int, section_mib: float, pairs: int) -> int:
    """(sequence, head) pairs whose reread tensors fit in so many MiB of L2; at least one."""
    return max(1, min(pairs, int(section_mib * 2**20) // max(1, pair_bytes)))
