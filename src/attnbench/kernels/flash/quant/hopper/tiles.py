# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Parts of the quantised forward for Hopper: work items, and the softmax of a tile of integer scores."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.flash.hopper.tiles import Mask, hide, locate
from attnbench.kernels.flash.tiles import keys_of_rows, padded_start, sequence, tiles_of
from attnbench.kernels.shared.hopper import ROWS, Argument, aggregate

PEAK = gl.constexpr(8.807354922057604)
"log2 of the largest e4m3 number, to which the largest weight of a row is scaled."

TILE = gl.constexpr(128)
"Keys of a tile; each tile has four scales (`prepare`)."
ZERO = gl.constexpr(0x4B400000)
"""Initial value of the int8 products: the bits of 1.5 · 2²³ as fp32, whose last bit has the value 1.  A sum below 2²² in
size can then be read as fp32 without conversion, `ZERO_AS_FLOAT` too large; these are positive, so they also order as
integers."""
ZERO_AS_FLOAT = gl.constexpr(12582912.0)


@aggregate
class QuantisedLayout:
    """Layout of heads and sequences in the quantised tensors."""

    heads_kv: Argument
    repeats: Argument
    "query heads per KV head"
    rows_q: Argument
    rows_k: Argument
    "of a head"


class Work(NamedTuple):
    """A work item as it is published: a tile of queries, and the tiles of keys that they see."""

    query_start: Any
    "first query of the sequence in the packed tensors"
    head: Any
    batch: Any
    "index of the sequence; 0 if packed"
    queries: Any
    keys: Any
    "of the sequence"
    first: Any
    "the item's first query"
    split: Any
    end: Any
    "tiles of keys: end of those that all rows see completely, and end of all"
    q_place: Any
    "row of the item's first query in the quantised queries of all heads"
    k_place: Any
    "row of the sequence's first key in those of its head"
    v_place: Any
    "index of the (sequence, KV head) pair"


WORK_FIELDS = gl.constexpr(Work._fields)


@gluon.jit
@no_type_check
def read_work(queue, turn):
    """The turn-th work item, which has been waited for; read again wherever it is needed, to save registers."""
    return Work(
        query_start=queue.number(turn, "query_start"),
        head=queue.number(turn, "head"),
        batch=queue.number(turn, "batch"),
        queries=queue.number(turn, "queries"),
        keys=queue.number(turn, "keys"),
        first=queue.number(turn, "first"),
        split=queue.number(turn, "split"),
        end=queue.number(turn, "end"),
        q_place=queue.number(turn, "q_place"),
        k_place=queue.number(turn, "k_place"),
        v_place=queue.number(turn, "v_place"),
    )


@aggregate
class EveryTile:
    """The key tiles of a dense work item: consecutive, up to the last that a row sees; and what of them is hidden."""

    mask: Mask

    @gluon.jit
    @no_type_check
    def listed(self, work):
        """Start of the list of tiles; dense tiles need none."""
        return work.end

    @gluon.jit
    @no_type_check
    def number(self, listed, place):
        """Index in the sequence of the tile at a place."""
        return place

    @gluon.jit
    @no_type_check
    def scales(self, scales, listed, place, number):
        """The four scales of the tile at a place, whose index is given, and the index of the previous tile."""
        return gl.load(scales + place * 4), number

    @gluon.jit
    @no_type_check
    def hide_tile(self, scores, work, place, row):
        """Scores of the tile at a place with hidden ones at -∞; rows begin at `row`."""
        return hide(scores, row, place * scores.shape[1], work.keys, work.keys - work.queries, self.mask)

    @gluon.jit
    @no_type_check
    def unseen(self, row, work, BLOCK_N: gl.constexpr):
        """How many tiles at the end of a work item's keys are hidden from all 64 rows from `row`."""
        high = work.keys
        if self.mask.HAS_RIGHT:
            last = gl.minimum(row + ROWS, work.queries) - 1
            high = gl.minimum(gl.maximum(last + (work.keys - work.queries + 1), 0), work.keys)
        seen = gl.minimum((high + BLOCK_N - 1) // BLOCK_N, work.end)
        return gl.where(row < work.queries, work.end - seen, work.end)


@gluon.jit
@no_type_check
def work_at(at, problem, layout, step, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """The at-th work item in the grid's order."""
    mask = problem.mask
    located = locate(at, problem, step)
    tile, head, number = located.tile, located.head, located.sequence
    bounds = sequence(problem.cu_q_ptr, problem.cu_k_ptr, problem.seqlen_q, problem.seqlen_k, number, problem.PACKED)
    queries, keys = bounds.queries, bounds.keys
    q_place = padded_start(number, bounds.query_start, queries, problem.PACKED, ROWS).to(gl.int32)
    k_place = padded_start(number, bounds.key_start, keys, problem.PACKED, 128).to(gl.int32)
    first = tile * BLOCK_M
    reach = keys_of_rows(
        first=first,
        last=gl.minimum(first + BLOCK_M, queries) - 1,
        keys=keys,
        shift=keys - queries,
        left=0,
        right=0,
        HAS_LEFT=False,
        HAS_RIGHT=mask.HAS_RIGHT,
    )
    tiles = tiles_of(reach, BLOCK_N)
    return Work(
        query_start=(bounds.query_start + bounds.batch * problem.seqlen_q).to(gl.int32),
        head=head,
        batch=gl.cast(bounds.batch, gl.int32),
        queries=queries,
        keys=keys,
        first=first,
        split=tiles.split,
        end=tiles.end,
        q_place=head * layout.rows_q + q_place + first,
        k_place=k_place,
        v_place=number * layout.heads_kv + head // layout.repeats,
    )


@gluon.jit
@no_type_check
def fours(scores):
    """Scores [rows, keys] as [rows, eights, 4, 2]: the third axis is the four threads of a row, each with its own scale."""
    return scores.reshape([scores.shape[0], scores.shape[1] // 8, 4, 2])


class Maximum(NamedTuple):
    """The running maximum of each row, with a tile's scores."""

    pivot: Any
    "what is subtracted from the tile's scores"
    factor: Any
    "of the output and the sums so far"
    row_max: Any


@gluon.jit
@no_type_check
def highest(largest, row_max, scale):
    """The `Maximum` of each row with a tile's scores.

    Args:
        largest: [rows, 4], of the scores of each of a row's four threads, before scaling.
        row_max: [rows], after scaling, for exponentials in base 2.
        scale: [rows, 4].
    """
    new_max = gl.maximum(row_max, gl.max(largest * scale, 1))
    # A row that has seen no key yet has no maximum to subtract.
    pivot = gl.where(new_max == float("-inf"), 0.0, new_max)
    return Maximum(pivot=pivot, factor=gl.exp2(row_max - pivot), row_max=new_max)


@gluon.jit
@no_type_check
def lowered(numbers, scale, pivot, sums, factor):
    """Weights of a tile of scores with an offset of ZERO, shaped as by `fours`, and the sums [rows, 4] with them.

    The scaled offset is subtracted together with the pivot; the rounding of both is below the last bit of a score.
    """
    parts = fours(numbers)
    weights = gl.exp2(spread(scale, parts) * parts - spread((pivot - PEAK)[:, None] + ZERO_AS_FLOAT * scale, parts))
    return weights, sums * factor[:, None] + gl.sum(gl.sum(weights, 3), 1)


@gluon.jit
@no_type_check
def spread(x, parts):
    """Numbers [rows, 4] as [rows, 1, 4, 1], to broadcast over scores shaped as by `fours`."""
    INNER: gl.constexpr = gl.SliceLayout(3, parts.type.layout)
    x = gl.convert_layout(x, gl.SliceLayout(1, INNER))
    return gl.expand_dims(gl.expand_dims(x, 1), 3)


@gluon.jit
@no_type_check
def largest_of(numbers, LAYOUT: gl.constexpr):
    """Largest score of each of a row's four threads, without the offset ZERO: fp32 [rows, 4].

    Compared as integers, because the card has a three-way integer maximum.
    """
    parts = fours(numbers.to(gl.int32, bitcast=True))
    CHAINS: gl.constexpr = 2
    shape: gl.constexpr = parts.shape
    # In two dependency chains: a single one would be as long as the tile.
    chains = gl.max(parts.reshape([shape[0], shape[1] // CHAINS, CHAINS, 4, 2]), 1)
    largest = gl.max(gl.max(chains, 3), 1).to(gl.float32, bitcast=True)
    return gl.convert_layout(largest, LAYOUT) - ZERO_AS_FLOAT


@gluon.jit
@no_type_check
def operand_of(weights, BLOCK_N: gl.constexpr, LAYOUT: gl.constexpr):
    """Weights shaped as by `fours` as e4m3: the left operand of a product with values in the order of `prepare.key_of`.

    They are put into the operand's order before rounding, four to a register, so that no data moves between threads; the
    compiler's own conversion of the layout would move it.
    """
    eights = weights.reshape([ROWS, BLOCK_N // 16, 2, 4, 2]).permute([0, 1, 3, 2, 4])
    ordered = gl.convert_layout(eights.reshape([ROWS, BLOCK_N]), LAYOUT)
    return gl.inline_asm_elementwise(
        """
        {
        .reg .b16 low, high;
        cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
        mov.b32 $0, {low, high};
        }
        """,
        "=r,r,r,r,r",
        [ordered],
        dtype=gl.int8,
        is_pure=True,
        pack=4,
    ).to(gl.float8e4nv, bitcast=True)
