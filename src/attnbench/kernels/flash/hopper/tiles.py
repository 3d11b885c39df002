# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Building blocks of the flash forward for Hopper: work items, the mask, joint rings, the softmax of a tile.

Joint rings of keys and values are two rings with the same tiles: a stage holds the keys of a tile, and then its values.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attnbench.kernels.flash.tiles import Folded, keys_of_rows, sees, sequence, tiles_of
from attnbench.kernels.shared.hopper import ROWS, Argument, Ring, aggregate, allocate_barriers
from attnbench.kernels.shared.rows import section_of

NAN = gl.constexpr(tl.PropagateNan.ALL)
C1, C2, C3 = (gl.constexpr(c) for c in (0.6932829022407532, 0.2422110140323639, 0.05500895157456398))
"Coefficients of a polynomial that is 1 at 0, with the least relative error (1.01e-4) for powers of two from -1/2 to 1/2."


@aggregate
class Mask:
    """Window bounds of the mask: how far a row sees to the left and right, and whether there is a bound."""

    left: Argument
    right: Argument
    HAS_LEFT: gl.constexpr
    HAS_RIGHT: gl.constexpr

    @gluon.jit
    @no_type_check
    def hide_tile(self, scores, work, tile, row):
        """Scores of a key tile of a work item with masked ones set to -∞; the rows begin at `row`."""
        return hide(scores, row, tile * scores.shape[1], work.keys, work.keys - work.queries, self)

    @gluon.jit
    @no_type_check
    def unseen(self, row, work, BLOCK_N: gl.constexpr):
        """How many of a work item's first tiles (its last keys) are hidden from all 64 rows from `row`."""
        high = work.keys
        if self.HAS_RIGHT:
            last = gl.minimum(row + ROWS, work.queries) - 1
            high = gl.minimum(gl.maximum(last + (work.keys - work.queries + self.right + 1), 0), work.keys)
        seen = gl.maximum((high + BLOCK_N - 1) // BLOCK_N, work.begin)
        return gl.where(row < work.queries, work.end - gl.minimum(seen, work.end), work.end - work.begin)


@aggregate
class GridProblem:
    """Launch arguments that describe the grid of work."""

    cu_q_ptr: Argument
    cu_k_ptr: Argument
    seqlen_q: Argument
    seqlen_k: Argument
    mask: Mask
    heads: Argument
    pairs: Argument
    "(sequence, head) pairs"
    tiles: Argument
    "query tiles of the longest sequence"
    group: Argument
    "pairs of a section (`rows.section_of`)"
    stretch: Argument
    sharers: Argument
    "as in `tiling.partition_work`"
    PACKED: gl.constexpr
    GRID: gl.constexpr


class Work(NamedTuple):
    """A work item as it is published: a query tile, and the key tiles that it sees."""

    query_start: Any
    "first query of the sequence in the packed tensors"
    head: Any
    batch: Any
    "index of the sequence"
    queries: Any
    keys: Any
    "of the sequence"
    first: Any
    "the item's first query"
    begin: Any
    "key tiles: the first, the first that all rows see, and the ends of both ranges"
    whole: Any
    split: Any
    end: Any


WORK_FIELDS = gl.constexpr(Work._fields)


@gluon.jit
@no_type_check
def read_work(queue, turn):
    """The turn-th work item, which must have been waited for.

    Read again wherever it is needed: a thread has no registers for its ten numbers.
    """
    return Work(
        query_start=queue.number(turn, "query_start"),
        head=queue.number(turn, "head"),
        batch=queue.number(turn, "batch"),
        queries=queue.number(turn, "queries"),
        keys=queue.number(turn, "keys"),
        first=queue.number(turn, "first"),
        begin=queue.number(turn, "begin"),
        whole=queue.number(turn, "whole"),
        split=queue.number(turn, "split"),
        end=queue.number(turn, "end"),
    )


@gluon.jit
@no_type_check
def ring_of(tiles, CONSUMERS: gl.constexpr):
    """A ring of these tiles with mbarriers of its own; before warp specialization."""
    STAGES: gl.constexpr = tiles.shape[0]
    return Ring(tiles, allocate_barriers(STAGES, 1), allocate_barriers(STAGES, CONSUMERS), STAGES, tiles.shape[5])


@gluon.jit
@no_type_check
def await_room_for_keys(rings, count):
    """Joint rings: wait until the values that the count-th tile's stage had before have been read."""
    ring = rings.v
    mbarrier.wait(ring.empty.index(count % ring.STAGES), (count // ring.STAGES & 1) ^ 1)


@gluon.jit
@no_type_check
def await_room_for_values(rings, count):
    """Joint rings: wait until the keys of the count-th tile have been read."""
    ring = rings.k
    mbarrier.wait(ring.empty.index(count % ring.STAGES), count // ring.STAGES & 1)


@gluon.jit
@no_type_check
def item_at(turn, tiles, pairs, stretch, step, GRID: gl.constexpr):
    """Number of the work item that is `turn`-th in a grid's order; `step` as in `hopper.work_range`.

    Sections come from the last to the first, so that a smaller one comes first and the grid ends with the short tiles of
    many pairs.  In the grid `few`, the items of a section are visited in alternating direction: a program that had the
    longest item has the shortest next, which balances the programs.
    """
    begin = 0
    end = tiles * pairs
    if GRID == "few":
        begin = turn // stretch * stretch
        end = gl.minimum(begin + stretch, end)
        lap = (turn - begin) // step
        start = begin + lap * step
        turn = gl.where(lap % 2 == 1, start + gl.minimum(start + step, end) - 1 - turn, turn)
    return begin + end - 1 - turn


class Located(NamedTuple):
    """A work item's query tile, and its sequence and head."""

    tile: Any
    head: Any
    sequence: Any
    "index of the sequence"


@gluon.jit
@no_type_check
def locate(turn, problem, step):
    """The work item that is `turn`-th in a grid's order, as `Located`; arbitrary past the last."""
    item = item_at(turn, problem.tiles, problem.pairs, problem.stretch, step, problem.GRID)
    tile, pair = section_of(gl.maximum(item, 0), problem.tiles, problem.pairs, problem.group)
    number = pair // problem.heads
    return Located(tile=tile, head=pair - number * problem.heads, sequence=number)


@gluon.jit
@no_type_check
def work_of(located, problem, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """The work item of a tile of BLOCK_M rows, and the first key of its sequence."""
    mask = problem.mask
    bounds = sequence(
        problem.cu_q_ptr, problem.cu_k_ptr, problem.seqlen_q, problem.seqlen_k, located.sequence, problem.PACKED
    )
    query_start = (bounds.query_start + bounds.batch * problem.seqlen_q).to(gl.int32)
    key_start = (bounds.key_start + bounds.batch * problem.seqlen_k).to(gl.int32)
    first = located.tile * BLOCK_M
    shift = bounds.keys - bounds.queries
    reach = keys_of_rows(
        first=first,
        last=gl.minimum(first + BLOCK_M, bounds.queries) - 1,
        keys=bounds.keys,
        shift=shift,
        left=mask.left,
        right=mask.right,
        HAS_LEFT=mask.HAS_LEFT,
        HAS_RIGHT=mask.HAS_RIGHT,
    )
    tiles = tiles_of(reach, BLOCK_N)
    work = Work(
        query_start=query_start,
        head=located.head,
        batch=gl.cast(bounds.batch, gl.int32),
        queries=bounds.queries,
        keys=bounds.keys,
        first=first,
        begin=tiles.begin,
        whole=tiles.whole,
        split=tiles.split,
        end=tiles.end,
    )
    return work, key_start


@gluon.jit
@no_type_check
def hide(scores, row, at, keys, shift, mask):
    """Scores with masked ones set to -∞; rows begin at `row`, keys at `at`."""
    rows = gl.arange(0, scores.shape[0], gl.SliceLayout(1, scores.type.layout))[:, None]
    columns = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))[None, :]
    # Column numbers relative to the first of eight columns, of which a thread has two: the rest of `columns` is then a
    # compile-time constant, where the compiler would otherwise keep a register for each column through the loop.
    own = columns & 7
    place = row + shift - at - own
    end = keys - at - own
    if mask.HAS_RIGHT:  # one comparison with a bound of each row for each element, instead of two
        end = gl.minimum(end, rows + (place + mask.right + 1))
    see = sees(
        rows=rows,
        columns=columns - own,
        keys=end,
        shift=place,
        left=mask.left,
        right=mask.right,
        HAS_LEFT=mask.HAS_LEFT,
        HAS_RIGHT=False,
    )
    return gl.where(see, scores, float("-inf"))


@gluon.jit
@no_type_check
def keep_in_place(x):
    """Returns fp32 x unchanged, but the compiler cannot move what depends on it up to before this place.

    Compilers move such work up to where x is known, before the products that it should overlap with.
    """
    return gl.inline_asm_elementwise(
        "shfl.sync.bfly.b32 $0, $1, 0, 31, -1;", "=f,f", [x], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
@no_type_check
def rounded(x, DTYPE: gl.constexpr):
    """fp32 x in bf16 or fp16, rounded at this place: compilers move a conversion to where its result is used."""
    if DTYPE.is_bf16():
        narrow = gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=gl.bfloat16, is_pure=False, pack=2
        )
    else:
        narrow = gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=gl.float16, is_pure=False, pack=2
        )
    return narrow


@gluon.jit
@no_type_check
def exp2(x, MIX: gl.constexpr):
    """2ˣ for x <= 0, by the special function unit; with MIX one element in eight by a polynomial, to relieve it."""
    if MIX:
        eighth = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))[None, :] // 8 % 8
        return gl.where(eighth == 0, power(x), gl.exp2(x))
    return gl.exp2(x)


@gluon.jit
@no_type_check
def power(x):
    """2ˣ for x <= 0 without the special function unit; 0 below -126.5, and NaN stays NaN.

    Adding 1.5 · 2²³ + 127 rounds x: the low bits of the sum are its nearest integer plus the exponent bias, and shifted
    left they are that power of two.  The power of the rest, in [-1/2, 1/2], is a polynomial of degree 3, off by a fifth of a
    rounding step of fp16.
    """
    x = gl.maximum(x, -127.0, propagate_nan=NAN)
    whole = x + 12583039.0
    rest = x - (whole - 12583039.0)
    value = ((C3 * rest + C2) * rest + C1) * rest + 1.0
    return value * (whole.to(gl.int32, bitcast=True) << 23).to(gl.float32, bitcast=True)


@gluon.jit
@no_type_check
def fold(scores, row_max, sums, scale, MIX: gl.constexpr):
    """Merge a tile's scores into the running softmax, as `Folded`."""
    new_max = gl.maximum(row_max, gl.convert_layout(max_of(scores), row_max.type.layout))
    # A row that has seen no key yet has no maximum to subtract.
    pivot = gl.where(new_max == float("-inf"), 0.0, new_max * scale)
    weights = exp2(scores * scale - pivot[:, None], MIX)
    factor = gl.exp2(row_max * scale - pivot)
    before = sums * gl.convert_layout(factor, gl.SliceLayout(1, sums.type.layout))[:, None]
    return Folded(weights=weights, factor=factor, row_max=new_max, sums=before + sums_of(weights))


@gluon.jit
@no_type_check
def max_of(scores):
    """Maximum of each row, four elements of a thread at a time: one chain over all of them would be latency-bound."""
    FOUR: gl.constexpr = 4 if scores.shape[1] >= 32 else scores.shape[1] // 8
    fours = gl.max(scores.reshape([scores.shape[0], scores.shape[1] // (8 * FOUR), FOUR, 8]), 2)
    return gl.max(gl.max(fours, 1), 1)


@gluon.jit
@no_type_check
def sums_of(weights):
    """Sums of each row, [rows, 4]: one for each of a row's four threads, which need not exchange them."""
    return gl.sum(gl.sum(weights.reshape([weights.shape[0], weights.shape[1] // 8, 4, 2]), 3), 1)
