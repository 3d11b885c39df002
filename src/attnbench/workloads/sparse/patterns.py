"""Block maps by name, density and seed: the same in every process, on every machine and version of numpy.

**A pattern is an order of the blocks of a row, and the density determines how many of them are kept**: of the v blocks
of a row in which the causal mask leaves anything, round(density · v), at least one.  Under a causal mask the blocks on
the diagonal come first, so that every query sees itself.  So all patterns have the same density, and rows of a
non-causal map have equal counts, except for `random-uneven`.

    full           every block
    random         by a hash of seed, sequence, head, row and column
    random-uneven  the same; a row keeps n blocks on average, from 1 to 2 n - 1, or from 2 n - v to v if n > v / 2
    window         by distance from the diagonal
    sink           the first block, then as window
    frame          by distance in frames, then in tokens
    radial         by the required width of a window that halves with each doubling of the distance in frames;
                   blocks of the first frame come first (Radial Attention, arXiv 2506.19852)
    sta            boxes of tiles around the query's own, shifted inside the video at its borders (sliding tile
                   attention, arXiv 2502.04507); tokens are in tile order.  Its density is that of the smallest box
                   with at least `density` of the tiles

Text before a video comes first in all patterns with a grid.  numpy is imported inside the functions, because listing
workloads does not need it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from attnbench.workloads.sparse.case import FULL, PATTERNS, TILE, SparseCase

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@lru_cache(maxsize=4)
def block_map(case: SparseCase) -> Array:
    """The map of a case, bool [B, H, rows, columns]; read only.

    Raises:
        UsageError: the pattern is a file that does not exist, or not a map of this case.
    """
    import numpy as np

    shape = (case.batch, case.nheads, *case.blocks)
    if case.pattern not in PATTERNS:
        from attnbench.workloads.sparse.map_file import read_map

        found = read_map(case.pattern, shape)
    elif case.pattern == FULL:
        found = np.ones(shape, bool)
    elif case.pattern == "sta":
        found = np.broadcast_to(_boxes(case), shape)
    else:
        found = _kept(case, shape)
    found = np.ascontiguousarray(found)
    found.setflags(write=False)
    return found


def visible_pairs(case: SparseCase) -> Array:
    """Return the (query, key) pairs of each block, considering tails and the causal mask; int64 [rows, columns]."""
    import numpy as np

    (start_q, size_q), (start_k, size_k) = spans(case)
    if not case.causal:
        pairs: Array = size_q * size_k
        return pairs

    def triangle(n: Array) -> Array:
        return np.where(n > 0, n * (n + 1) // 2, 0)

    # Pairs (i, j) of a block with j - i <= d; see `attention.work`.
    d = case.seqlen_k - case.seqlen + start_q - start_k
    return triangle(d + size_q) - triangle(d) - triangle(d + size_q - size_k) + triangle(d - size_k)


def spans(case: SparseCase) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return first row and number of rows of each block row [rows, 1], and the same for columns [1, columns]."""
    import numpy as np

    (rows, columns), (block_q, block_k) = case.blocks, case.block_shape
    start_q: Array = np.arange(rows)[:, None] * block_q
    start_k: Array = np.arange(columns)[None, :] * block_k
    return (start_q, np.minimum(block_q, case.seqlen - start_q)), (
        start_k,
        np.minimum(block_k, case.seqlen_k - start_k),
    )


def _kept(case: SparseCase, shape: tuple[int, ...]) -> Array:
    """Return the first blocks of each row in the pattern's order."""
    import numpy as np

    possible, forced = visible_pairs(case) > 0, on_diagonal(case)
    least = np.maximum(forced.sum(1), 1)
    assert case.density is not None  # only files have none
    share = np.floor(case.density * possible.sum(1) + 0.5)
    count = np.broadcast_to(np.clip(share, least, possible.sum(1)).astype(np.int64), shape[:3])
    if case.pattern == "random-uneven":
        # Symmetric, so that the mean is the count.
        spread = np.maximum(np.minimum(count - 1, possible.sum(1) - count), 0)
        draw = _hash(case.map_seed ^ 0x5EED, shape[:3]) % (2 * spread + 1).astype(np.uint64)
        count = np.clip(count - spread + draw.astype(np.int64), least, np.maximum(possible.sum(1), 1))
    if not case.pattern.startswith("random"):
        return np.broadcast_to(_first(_ranks(_distance(case)), count[0, 0], possible, forced), shape)
    found: Array = np.empty(shape, bool)
    columns: Array = np.arange(shape[3], dtype=np.uint64)
    # One head at a time: 128 heads of 512 x 512 blocks would be gigabytes, larger than any cache.
    for number, head in enumerate(np.ndindex(shape[:2])):
        drawn = _hash(case.map_seed, shape[2:], first=number * shape[2] * shape[3])
        # All values of a row differ, because the last bits are the column.
        order = drawn >> np.uint64(20) << np.uint64(20) | columns
        found[head] = _first(order, count[head], possible, forced)
    return found


def _first(order: Array, count: Array, possible: Array, forced: Array) -> Array:
    """Return the first `count` blocks of each row in an order, forced ones before all others; [rows, columns]."""
    import numpy as np

    order = np.where(forced, 0, np.where(possible, order + np.uint64(1), np.iinfo(np.uint64).max))
    last = np.take_along_axis(np.sort(order, axis=-1), count[:, None] - 1, axis=-1)
    kept: Array = (order <= last) & possible
    return kept


def on_diagonal(case: SparseCase) -> Array:
    """Return the blocks in which a query of a causal case is at its own position."""
    (start_q, size_q), (start_k, size_k) = spans(case)
    first: Array = start_q + case.seqlen_k - case.seqlen
    found: Array = (first < start_k + size_k) & (first + size_q > start_k) & case.causal
    return found


def _ranks(distance: Array) -> Array:
    """Return the rank of each block in its row by distance, earlier columns first."""
    import numpy as np

    order = np.argsort(distance, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(distance.shape[1])[None, :].repeat(len(distance), 0), axis=1)
    return ranks.astype(np.uint64)


def _distance(case: SparseCase) -> Array:
    """Return the values by which a pattern orders blocks, float [rows, columns]; negative: always kept first."""
    import numpy as np

    (start_q, size_q), (start_k, size_k) = spans(case)
    apart = np.abs(start_q + size_q / 2 + case.seqlen_k - case.seqlen - start_k - size_k / 2)
    if case.pattern == "window":
        return apart
    if case.pattern == "sink":
        return np.where(start_k == 0, -1.0, apart)
    frames, height, width = case.thw
    of_frame, text = height * width, case.text_tokens
    at_q, at_k = (np.maximum(start + size / 2 - text, 0) for start, size in ((start_q, size_q), (start_k, size_k)))
    between = np.abs(at_q // of_frame - at_k // of_frame)
    if case.pattern == "frame":
        distance = between * (frames * of_frame + 1.0) + apart
    else:
        distance = np.abs(at_q % of_frame - at_k % of_frame) * 2 ** np.floor(np.log2(np.maximum(between, 1)))
        distance = np.where(start_k < text + of_frame, -1.0, distance * (frames + 1.0) + between)
    return np.where(start_k < text, -2.0, distance)


def tile_window(case: SparseCase) -> tuple[int, int, int]:
    """Return the tiles over (t, h, w) of the smallest box with at least the density; odd numbers, or all there are."""
    tiles = _tiles(case)
    wanted = (case.density or 1.0) * tiles[0] * tiles[1] * tiles[2] - 1e-9
    sizes = [sorted({n for n in range(1, of + 1) if n % 2 or n == of}) for of in tiles]
    boxes = [box for box in product(sizes[0], sizes[1], sizes[2]) if box[0] * box[1] * box[2] >= wanted]
    return min(boxes, key=lambda box: (box[0] * box[1] * box[2], max(box), box))


def _tiles(case: SparseCase) -> tuple[int, int, int]:
    t, h, w = (n // tile for n, tile in zip(case.thw, TILE, strict=True))
    return t, h, w


def _boxes(case: SparseCase) -> Array:
    import numpy as np

    tiles, window = _tiles(case), tile_window(case)
    of_tile = TILE[0] * TILE[1] * TILE[2]
    (start_q, _), (start_k, _) = spans(case)
    seen: Array = np.ones(case.blocks, bool)
    for axis, (count, size) in enumerate(zip(tiles, window, strict=True)):
        at_q, at_k = (np.unravel_index(start // of_tile, tiles)[axis] for start in (start_q, start_k))
        first = np.clip(at_q - size // 2, 0, count - size)
        seen &= (at_k >= first) & (at_k < first + size)
    return seen & (visible_pairs(case) > 0)


def _hash(seed: int, shape: tuple[int, ...], first: int = 0) -> Array:
    """SplitMix64 (Steele, Lea and Flood 2014) of seed and flat index, counted from `first`; uint64; must not change."""
    import numpy as np

    with np.errstate(over="ignore"):
        x: Array = np.arange(first, first + math.prod(shape), dtype=np.uint64).reshape(shape)
        x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + _mixed(np.array([seed], np.uint64))
        return _mixed(x)


def _mixed(x: Array) -> Array:
    import numpy as np

    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
