# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Top-k in a warpgroup's registers: each thread keeps a list per row over all tiles, and the lists are merged at the end.

Four threads hold a row of a product [rows, blocks], each two adjacent blocks of every eight.  Each keeps the best
keys of its own blocks, so that no data moves between threads in the loop; at the end the four lists of a row are
merged.  Keys are those of bsa.topk, only narrow ones.

The two keys of a pair of blocks are sorted, then inserted together: for sorted lists a and b the k-th of both is

    max of min(a_i, b_j) over i + j = k        where a_0 and b_0 are above every key

For lists of three that is 8 integer operations for two scores, because sm_90 has a three-way maximum.
A key takes 3.5 operations: inserting the block number, spreading the sign bit, flipping the bits where it is set, and the
number itself, which two rows share.  So 7.5 for each score, of which an SM does 64 a clock; masked tiles also compare and
select.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.hstu.bsa.topk import block_of, insert

NOTHING = gl.constexpr(-(2**31))
"The smallest key, which means no block: `bsa.topk.least` as a constant."

OWNERS = gl.constexpr(4)
"Threads that hold a row of a product."


@gluon.jit
@no_type_check
def parted_columns(scores):
    """Columns [1, blocks] of a product as the sum of a thread-dependent part and a compile-time constant."""
    columns = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))[None, :]
    own = columns & 6
    return own, columns ^ own


@gluon.jit
@no_type_check
def keys_of(scores, start, BITS: gl.constexpr):
    """Keys [rows, blocks] of the scores of the blocks from `start`, a multiple of their number.

    The block number is inserted before the bits are reordered, which takes three operations; the compiler makes the other
    order four.
    """
    own, place = parted_columns(scores)
    bits = scores.to(gl.int32, bitcast=True)
    named = (bits & -(2**BITS)) | (((2**BITS - 1 - start) ^ own) ^ place)
    return named ^ ((bits >> 31) & (0x7FFFFFFF & -(2**BITS)))


@gluon.jit
@no_type_check
def places_of(x, ROWS: gl.constexpr, PLACES: gl.constexpr):
    """A tensor [rows, owners, places] as a tuple of its places, each [rows, owners]."""
    parts = (x,)
    for level in gl.static_range(PLACES.bit_length() - 1):
        halves = ()
        for i in gl.static_range(len(parts)):
            first, second = gl.split(gl.reshape(parts[i], [ROWS, OWNERS, PLACES >> (level + 1), 2]))
            halves = halves + (first, second)  # noqa: RUF005 (Triton has no unpacking)
        parts = halves
    found = ()
    for i in gl.static_range(len(parts)):
        found = found + (gl.reshape(parts[i], [ROWS, OWNERS]),)  # noqa: RUF005
    return found


@gluon.jit
@no_type_check
def ordered_pairs(keys, ROWS: gl.constexpr, BLOCKS: gl.constexpr):
    """Keys [rows, blocks] in the layout of a product as pairs of adjacent columns: the better keys, and the worse ones."""
    pairs = gl.permute(gl.reshape(keys, [ROWS, BLOCKS // 8, OWNERS, 2]), [0, 2, 1, 3])
    first, second = gl.split(pairs)
    return (
        places_of(gl.maximum(first, second), ROWS, BLOCKS // 8),
        places_of(gl.minimum(first, second), ROWS, BLOCKS // 8),
    )


@gluon.jit
@no_type_check
def insert_pair(best, better, worse):
    """Insert two sorted keys into a list; the last two entries are dropped."""
    kept = ()
    for i in gl.static_range(len(best)):
        key = best[i]
        if i == 0:
            key = gl.maximum(key, better)
        if i == 1:
            key = gl.maximum(gl.maximum(key, worse), gl.minimum(best[0], better))
        if i > 1:
            key = gl.maximum(gl.maximum(key, gl.minimum(best[i - 1], better)), gl.minimum(best[i - 2], worse))
        kept = kept + (key,)  # noqa: RUF005
    return kept


@gluon.jit
@no_type_check
def fold_keys(best, keys, ROWS: gl.constexpr, BLOCKS: gl.constexpr):
    """Merge a tile of keys [rows, blocks] into the lists."""
    better, worse = ordered_pairs(keys, ROWS, BLOCKS)
    for i in gl.static_range(BLOCKS // 8):
        best = insert_pair(best, better[i], worse[i])
    return best


@gluon.jit
@no_type_check
def empty_lists(LENGTH: gl.constexpr, ROWS: gl.constexpr, BLOCKS: gl.constexpr, LAYOUT: gl.constexpr):
    """Empty lists, a tuple of [rows, owners], for scores [rows, blocks] in LAYOUT."""
    nothing, _ = ordered_pairs(gl.full([ROWS, BLOCKS], NOTHING, gl.int32, LAYOUT), ROWS, BLOCKS)
    best = ()
    for _i in gl.static_range(LENGTH):
        best = best + (nothing[0],)  # noqa: RUF005
    return best


@gluon.jit
@no_type_check
def merge_owners(best):
    """The best keys of each row over all its owners: a tuple of [rows]."""
    chosen = ()
    for _i in gl.static_range(len(best)):
        top = gl.max(best[0], 1)
        taken = best[0] == top[:, None]
        rest = ()
        for i in gl.static_range(len(best)):
            behind = NOTHING
            if i + 1 < len(best):
                behind = best[i + 1]
            rest = rest + (gl.where(taken, behind, best[i]),)  # noqa: RUF005
        best = rest
        chosen = chosen + (top,)  # noqa: RUF005
    return chosen


@gluon.jit
@no_type_check
def store_blocks(blocks_ptr, chosen, rows, local, mask, COUNTS: gl.constexpr, BITS: gl.constexpr, stride):
    """Store the blocks of the keys of [rows], ascending, then the `local` one, padded with -1."""
    order = ()
    for _ in gl.static_range(COUNTS):
        order = order + (rows * 0 + NOTHING,)  # noqa: RUF005
    order = insert(order, -local)
    for i in gl.static_range(COUNTS - 1):
        order = insert(order, gl.where(chosen[i] == NOTHING, NOTHING, -block_of(chosen[i], BITS)))
    for i in gl.static_range(COUNTS):
        gl.store(blocks_ptr + rows.to(gl.int64) * stride + i, gl.where(order[i] == NOTHING, -1, -order[i]), mask=mask)
