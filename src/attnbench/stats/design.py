"""The order in which the subjects of a group are sampled in each round.

A launch inherits heat, clock and cache from the one before it, and the first of a round follows the
bookkeeping between rounds.  Balanced orders give every subject every place and every predecessor
equally often, so that no subject is favoured.  Orders are random so that they cannot synchronise with
anything periodic.
"""

from __future__ import annotations

import random


def balanced_orders(num_subjects: int, num_rounds: int, seed: int) -> list[tuple[int, ...]]:
    """Random orders of the subjects, balanced in place and predecessor.

    After every `num_subjects` rounds each subject has been at each place equally often.  After every block
    (`num_subjects` rounds, twice that for an odd number) each has followed each other subject equally often.
    A block is a Williams square (for an odd number with its mirror image), with its subjects relabelled and
    its rows shuffled anew.

    Args:
        num_subjects: At least 1.
        num_rounds: Number of orders.
        seed: The same seed gives the same orders; more rounds append to them.

    Raises:
        ValueError: no subject, or a negative number of rounds.
    """
    if num_subjects < 1 or num_rounds < 0:
        raise ValueError(f"num_subjects={num_subjects}, num_rounds={num_rounds}: at least 1 and 0")
    lots = random.Random(seed)
    orders: list[tuple[int, ...]] = []
    while len(orders) < num_rounds:
        labels = lots.sample(range(num_subjects), num_subjects)
        square = [
            tuple(labels[(place + row) % num_subjects] for place in _zigzag(num_subjects))
            for row in range(num_subjects)
        ]
        lots.shuffle(square)
        orders += square
        if num_subjects % 2 and num_subjects > 1:
            mirrored = [order[::-1] for order in square]
            lots.shuffle(mirrored)
            orders += mirrored
    return orders[:num_rounds]


def _zigzag(count: int) -> list[int]:
    """0, 1, n-1, 2, n-2 …: neighbours differ by each amount once (n even), or twice with its mirror image (n odd)."""
    return [(step + 1) // 2 if step % 2 else (count - step // 2) % count for step in range(count)]
