"""Decode: few queries attend to many keys; into how many programs the keys are divided.

Such a call reads keys and values once and computes little, so it is limited by memory bandwidth.  With one program per
sequence and KV head, small batches would leave most of the card idle.  The order `decode` (`portable.decode`) lists the key
tiles of all sequences and KV heads one after another, and gives every program an equal share of the list:

    programs = min(SMs x `sharers`, tiles / LEAST_TILES)      share = tiles / programs, or one tile more

for any batch and any lengths.  A share may begin and end within a job (a sequence and KV head); where a few programs fewer
align shares with jobs, fewer are used.  A job that is divided has partial results, at most two per program, which a
second kernel combines.  Can be imported without torch and Triton.
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
"Most rows of a tile: the queries of all heads that share a KV head."
LEAST_KEYS = 512
LEAST_TILES = 2
"Fewest tiles of a program: further tiles are loaded while the first is used, and each program costs a partial result."
START_BYTES = 96 * 1024
"What an SM could read between a program's last tile of one job and its first of the next: about 3 us on an H200."
LARGEST_LIST = 2**31 - 1
"Limit of the list: kernels index its entries in 32 bits."
FEWER = 16
"One program in this many may be left out to align shares: the others read memory nearly as fast."


def is_decode(seqlen_q: int, seqlen_k: int, repeats: int) -> bool:
    """Whether `decode` is the default order: few queries, many keys.

    Args:
        seqlen_q: most queries of a sequence.
        seqlen_k: most keys of a sequence.
        repeats: query heads per KV head.
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
        item_bytes: bytes of an element.
        dim: the larger of head and value dim.
        rows: queries of a sequence times query heads per KV head; more than MOST_ROWS are several tiles.
        described: whether tensor maps can describe keys and values; otherwise they are not loaded by TMA.
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
    """Key tiles that some query of a sequence sees, at least one; `portable.decode.tiles_seen` on the host."""
    shift = keys - queries
    low = 0 if left is None else min(max(shift - left, 0), keys)
    high = keys if right is None else min(max(queries + shift + right, 0), keys)
    return max(-(-high // block_n) - low // block_n, 1)


def programs_of(config: ForwardConfig, tiles: int, processors: int, jobs: int = 1) -> int:
    """Number of programs among which a list of tiles is divided.

    Slightly fewer programs (FEWER) are used if then no share spans two jobs: a program that spans two jobs starts twice
    and has two partial results.

    Args:
        config: with the order `decode`.
        tiles: in the list; if packed, an upper bound.
        processors: SMs of the card.
        jobs: number of equally long jobs in the list.
    """
    most = max(1, min(processors * config.sharers, tiles // LEAST_TILES))
    even = most // jobs * jobs or next(programs for programs in range(most, 0, -1) if jobs % programs == 0)
    return even if (most - even) * FEWER <= most else most


def lead_of(config: ForwardConfig, row_bytes: int, jobs: int = 0, tiles: int = 0) -> int:
    """Empty entries in the list before the tiles of each job: the cost of starting a job, in tiles, if the list has room.

    Args:
        config: with the order `decode`.
        row_bytes: bytes of a key and its value.
        jobs: upper bound of the jobs.
        tiles: upper bound of the tiles in the list.
    """
    start = -(-START_BYTES // (config.sharers * config.block_n * row_bytes))
    return min(start, (LARGEST_LIST - tiles) // jobs) if jobs else start
