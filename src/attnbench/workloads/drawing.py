"""The common rule for drawing parts of a case when the oracle of the whole case does not fit in memory.

A workload defines what a part is (a pair of sequence and head, a user, a block of queries, a frame), which parts must
always be drawn (the corners), and how many bytes a part's results take.  Imports without torch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

from attnbench.workloads.base import Draw

Part = tuple[int, ...]


def draw_parts(
    everything: Sequence[Part],
    corners: Collection[Part],
    *,
    unit: str,
    key: str,
    max_bytes: int,
    result_bytes: Callable[[Part], int],
) -> Draw:
    """Return all parts if their results fit, else the corners and as many parts drawn by seed as fit.

    Args:
        everything: every part of the case.
        corners: parts that are always drawn, even if they alone take more.
        unit: what a part is, in the plural, for the record: ``(sequence, head) pairs``.
        key: text that determines the draw: the case and the seed.
        max_bytes: limit of all results together.
        result_bytes: returns the size of one part's results.
    """
    if sum(map(result_bytes, everything)) <= max_bytes:
        return Draw()
    chosen = set(corners)
    left = max_bytes - sum(map(result_bytes, chosen))
    rng = random.Random(key)
    for part in sorted(everything, key=lambda _: rng.random()):
        if part not in chosen and (size := result_bytes(part)) <= left:
            chosen.add(part)
            left -= size
    return Draw() if len(chosen) == len(everything) else Draw(tuple(sorted(chosen)), unit)
