"""The distribution of rows: every row once, balanced work, chunks that differ by one row at most."""

from __future__ import annotations

import random

import pytest

from attnbench.parallel.deal import TOLERANCE, deal, even_rows

RNG = random.Random("deal")
LENGTHS = [
    [8192],
    [0],
    [1],
    [3, 0, 0, 1],
    [1000, 1000],
    [129, 127, 64, 63, 1, 0],
    *([RNG.randrange(400) for _ in range(RNG.randrange(1, 12))] for _ in range(20)),
]


def work_of(found, rank: int, causal: bool) -> float:
    """Visible pairs of a rank, counted row by row."""
    total = 0
    for at, length in enumerate(found.lengths):
        first, end = found.starts[at], found.starts[at + 1]
        for start, stop in found.rows(rank):
            for row in range(max(start, first), min(stop, end)):
                total += row - first + 1 if causal else length
    return total


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_every_row_is_dealt_once_and_the_busiest_rank_has_little_more_than_its_share(world, causal):
    for lengths in LENGTHS:
        found = deal(lengths, world, causal=causal)
        rows = [row for rank in range(world) for start, end in found.rows(rank) for row in range(start, end)]
        assert sorted(rows) == list(range(sum(lengths)))
        assert sum(found.local_lengths(0)) == sum(end - start for start, end in found.rows(0))
        loads = [work_of(found, rank, causal) for rank in range(world)]
        # A chunk has a row more than another at most, in two chunks of each cut sequence.
        slack = 2 * sum(lengths[one] for one in found.cut)
        assert max(loads) <= TOLERANCE * sum(loads) / world + slack, (lengths, found)


def test_as_few_sequences_are_cut_as_balance_needs():
    assert deal([1000] * 4, 2, causal=True).cut == ()
    assert deal([8000, 100, 90, 110, 100], 2, causal=True).cut == (0,)
    assert deal([500], 4, causal=False).cut == (0,)


def test_chunks_of_a_cut_sequence_differ_by_one_row_at_most_and_a_pair_is_the_same_distance_from_both_ends():
    found = deal([1003], 2, causal=True)
    chunks = [found.chunk(0, number) for number in range(4)]
    assert chunks == [(0, 250), (250, 501), (501, 752), (752, 1003)]
    assert found.pair(0, 0) == (chunks[0], chunks[3])
    assert found.pair(0, 1) == (chunks[1], chunks[2])
    assert found.pair_sizes(0, 0) == (250, 251)


def test_rows_that_are_dealt_evenly_follow_each_other():
    assert even_rows(7, 2) == [(0, 3), (3, 7)]
    assert even_rows(1, 4) == [(0, 0), (0, 0), (0, 0), (0, 1)]
