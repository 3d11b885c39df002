"""Decode: when few queries attend to many keys, and among how many programs these are shared out.

Such a call reads keys and values once and computes next to nothing, so it is as fast as the memory is read.  One
program a sequence and KV head would leave most of the card idle at small batches.  The order `decode`
(`portable.decode`) lists the tiles of keys of all sequences and KV heads, one after another, and gives every program
an equal share of the list:

    programs = min(SMs x `sharers`, tiles / LEAST_TILES)      share = tiles / programs, or one tile more

whatever the batch and however uneven the lengths.  A share begins and ends wherever it does, but with the jobs where
few programs less make that so; keys that are cut have partial results, two a program at most, which a second kernel
combines.  Imports without torch and Triton.
"""

from __future__ import annotations

from functools import cache

from attnbench.kernels.flash.config.defaults import TABLE
from attnbench.kernels.flash.config.forward import DECODE, ForwardConfig

__all__ = [
    "LARGEST_LIST",
    "LEAST_KEYS",
    "MOST_QUERIES",
    "MOST_ROWS",
    "decode_config",
    "is_decode",
    "lead_of",
    "programs_of",
    "tiles_of_job",
]

MOST_QUERIES = 16
MOST_ROWS = 64
"Of a tile: the queries of all heads that share a KV head."
LEAST_KEYS = 512
LEAST_TILES = 2
"Of a program: a tile more is read beside the first, a program more is a partial result more."
START_BYTES = 96 * 1024
"What an SM would read between a program's last tile of one job and its first of the next: some 3 us of an H200."
LARGEST_LIST = 2**31 - 1
"Kernels number its entries in 32 bits."
FEWER = 16
"Of so many programs one may stay away for even shares: those that are left read memory as fast, or nearly."


def is_decode(seqlen_q: int, seqlen_k: int, repeats: int) -> bool:
    """Whether the order `decode` is the default: few queries, many keys.

    Args:
        seqlen_q: most queries of a sequence.
        seqlen_k: most keys of a sequence.
        repeats: query heads of a KV head.
    """
    few = seqlen_q <= MOST_QUERIES or seqlen_q * repeats <= MOST_ROWS
    return few and seqlen_k >= LEAST_KEYS


@cache
def decode_config(
    capability: tuple[int, int], item_bytes: int, dim: int, rows: int, *, described: bool = False
) -> ForwardConfig:
    """Tuned default of the order `decode`.

    Args:
        capability: of the card; (0, 0) is the interpreter.
        item_bytes: of an element.
        dim: the larger of head and value dim.
        rows: queries of a sequence times query heads of a KV head; over MOST_ROWS they are several tiles.
        described: tensor maps can describe the keys and values; else none that loads by them.
    """
    return TABLE.first(
        DECODE,
        ForwardConfig,
        cards=capability[0],
        item_bytes=item_bytes,
        dim=dim,
        rows=min(rows, MOST_ROWS),
        also=lambda config: described or config.loads == "pointer",
    )


def tiles_of_job(queries: int, keys: int, left: int | None, right: int | None, block_n: int) -> int:
    """Tiles of keys that some query of a sequence sees, at least one; `portable.decode.tiles_seen` on the host."""
    shift = keys - queries
    low = 0 if left is None else min(max(shift - left, 0), keys)
    high = keys if right is None else min(max(queries + shift + right, 0), keys)
    return max(-(-high // block_n) - low // block_n, 1)


def programs_of(config: ForwardConfig, tiles: int, processors: int, jobs: int = 1) -> int:
    """Programs among which a list of tiles is shared out.

    Where a few less (FEWER) let no share end one job and begin the next, they do: such a program starts twice, and what it
    combines is two partial results.

    Args:
        config: of the order `decode`.
        tiles: in the list; packed, at most so many.
        processors: SMs of the card.
        jobs: equally long ones that the list is made of.
    """
    most = max(1, min(processors * config.sharers, tiles // LEAST_TILES))
    even = most // jobs * jobs or next(programs for programs in range(most, 0, -1) if jobs % programs == 0)
    return even if (most - even) * FEWER <= most else most


def lead_of(config: ForwardConfig, row_bytes: int, jobs: int = 0, tiles: int = 0) -> int:
    """Blanks in the list before the tiles of a job: its start, in tiles of a program, or what the list has room for.

    Args:
        config: of the order `decode`.
        row_bytes: of a key and its value.
        jobs: at most so many.
        tiles: in the list, at most so many.
    """
    start = -(-START_BYTES // (config.sharers * config.block_n * row_bytes))
    return min(start, (LARGEST_LIST - tiles) // jobs) if jobs else start
