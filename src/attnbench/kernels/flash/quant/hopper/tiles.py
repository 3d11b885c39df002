# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""What the quantised forward for Hopper is made of: work items, and the softmax of a tile of whole-number scores."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.flash.hopper.tiles import Mask, hide, locate
from attnbench.kernels.flash.tiles import keys_of_rows, padded_start, sequence, tiles_of
from attnbench.kernels.shared.hopper import ROWS, Argument, aggregate

PEAK = gl.constexpr(8.807354922057604)
"log2 of the largest number of e4m3, which the largest weight of a row becomes."

TILE = gl.constexpr(128)
"Keys that have four scales of their own (`prepare`)."
ZERO = gl.constexpr(0x4B400000)
"""What sums of int8 products begin with: the bits of 1.5 · 2²³ as fp32, whose last bit counts 1.  A sum below 2²² in size
is then a number of fp32 as it stands, `ZERO_AS_FLOAT` too large; and as these are positive they order as integers do."""
ZERO_AS_FLOAT = gl.constexpr(12582912.0)


@aggregate
class Rooms:
    """Where heads and sequences lie in the quantised tensors."""

    heads_kv: Argument
    repeats: Argument
    "query heads of a head of keys"
    rows_q: Argument
    rows_k: Argument
    "of a head"


class Work(NamedTuple):
    """A work item as it is published: a tile of rows, and the tiles of keys that they see."""

    query_start: Any
    "the sequence's first query among all"
    head: Any
    batch: Any
    "the sequence; packed 0"
    queries: Any
    keys: Any
    "of the sequence"
    first: Any
    "the item's first query"
    split: Any
    end: Any
    "tiles of keys: behind the last that all rows see whole, and behind the last"
    q_place: Any
    "row of the item's first query among all heads' quantised queries"
    k_place: Any
    "row of the sequence's first key among those of its head"
    v_place: Any
    "number of the sequence and its head of keys"


WORK_FIELDS = gl.constexpr(Work._fields)


@gluon.jit
@no_type_check
def read_work(queue, turn):
    """The turn-th work item, which has been waited for; read anew wherever it is needed, as registers are short."""
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
    """A work item's tiles of keys, one after the other up to the last that a row sees: which they are, what is hidden."""

    mask: Mask

    @gluon.jit
    @no_type_check
    def listed(self, work):
        """Where a list of the tiles begins; there is none."""
        return work.end

    @gluon.jit
    @no_type_check
    def number(self, listed, place):
        """Which tile of the sequence is at a place."""
        return place

    @gluon.jit
    @no_type_check
    def scales(self, scales, listed, place, number):
        """The four scales of the tile at a place, whose number is given, and the number of the one before."""
        return gl.load(scales + place * 4), number

    @gluon.jit
    @no_type_check
    def hide_tile(self, scores, work, place, row):
        """Scores of the tile at a place with those at -∞ that rows do not see; rows from `row`."""
        return hide(scores, row, place * scores.shape[1], work.keys, work.keys - work.queries, self.mask)

    @gluon.jit
    @no_type_check
    def unseen(self, row, work, BLOCK_N: gl.constexpr):
        """How many of a work item's first tiles, the last of its keys, show nothing to the 64 rows from `row`."""
        high = work.keys
        if self.mask.HAS_RIGHT:
            last = gl.minimum(row + ROWS, work.queries) - 1
            high = gl.minimum(gl.maximum(last + (work.keys - work.queries + 1), 0), work.keys)
        seen = gl.minimum((high + BLOCK_N - 1) // BLOCK_N, work.end)
        return gl.where(row < work.queries, work.end - seen, work.end)


@gluon.jit
@no_type_check
def work_at(at, problem, rooms, step, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """The work item that is at-th in the grid's order."""
    mask = problem.mask
    tile, head, number = locate(at, problem, step)
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
        q_place=head * rooms.rows_q + q_place + first,
        k_place=k_place,
        v_place=number * rooms.heads_kv + head // rooms.repeats,
    )


@gluon.jit
@no_type_check
def fours(scores):
    """Scores [rows, keys] as [rows, eights, 4, 2]: the third axis is that of the threads of a row, each with a scale."""
    return scores.reshape([scores.shape[0], scores.shape[1] // 8, 4, 2])


@gluon.jit
@no_type_check
def highest(largest, row_max, scale):
    """What is taken off a tile's scores, the factor of what came before, and the new maximum.

    Args:
        largest: [rows, 4], of the scores that each of a row's four threads holds, still without their scales.
        row_max: [rows], in powers of two, with the scales.
        scale: [rows, 4].
    """
    new_max = gl.maximum(row_max, gl.max(largest * scale, 1))
    # A row that has seen no key yet has no maximum to take off.
    pivot = gl.where(new_max == float("-inf"), 0.0, new_max)
    return pivot, gl.exp2(row_max - pivot), new_max


@gluon.jit
@no_type_check
def lowered(numbers, scale, pivot, sums, factor):
    """Weights of a tile of scores, each ZERO too large, in fours, and the sums [rows, 4] with them.

    The scaled ZERO is rounded with the pivot, by less than a score's last bit counts.
    """
    parts = fours(numbers)
    weights = gl.exp2(spread(scale, parts) * parts - spread((pivot - PEAK)[:, None] + ZERO_AS_FLOAT * scale, parts))
    return weights, sums * factor[:, None] + gl.sum(gl.sum(weights, 3), 1)


@gluon.jit
@no_type_check
def spread(x, parts):
    """Numbers [rows, 4] as [rows, 1, 4, 1] beside scores in fours."""
    INNER: gl.constexpr = gl.SliceLayout(3, parts.type.layout)
    x = gl.convert_layout(x, gl.SliceLayout(1, INNER))
    return gl.expand_dims(gl.expand_dims(x, 1), 3)


@gluon.jit
@no_type_check
def largest_of(numbers, LAYOUT: gl.constexpr):
    """Largest of the scores, each ZERO too large, that each of a row's four threads holds: fp32 [rows, 4].

    As integers: of those the card compares three at a time.
    """
    parts = fours(numbers.to(gl.int32, bitcast=True))
    CHAINS: gl.constexpr = 2
    shape: gl.constexpr = parts.shape
    # Of two chains: one were as long as a tile.
    chains = gl.max(parts.reshape([shape[0], shape[1] // CHAINS, CHAINS, 4, 2]), 1)
    largest = gl.max(gl.max(chains, 3), 1).to(gl.float32, bitcast=True)
    return gl.convert_layout(largest, LAYOUT) - ZERO_AS_FLOAT


@gluon.jit
@no_type_check
def operand_of(weights, ROWS_BY_KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """Weights in fours as e4m3, the left operand of a product with values in the order of `prepare.key_of`.

    In the operand's order before they are rounded, four of a register at a time: that needs no rearranging, which what
    the compiler makes of a conversion does.
    """
    SIZE: gl.constexpr = ROWS_BY_KEYS
    eights = weights.reshape([SIZE[0], SIZE[1] // 16, 2, 4, 2]).permute([0, 1, 3, 2, 4])
    ordered = gl.convert_layout(eights.reshape([SIZE[0], SIZE[1]]), LAYOUT)
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
