# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Epilogue of the flash forward for Hopper: the output, stored through shared memory, and lse."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language.core import base_value

from attnbench.kernels.flash.hopper.pieces import Rests, scaled
from attnbench.kernels.flash.hopper.tiles import read_work
from attnbench.kernels.shared.hopper import ROWS, Argument, Rings, WorkQueue, aggregate, store_output, sync_warps

LN_2 = gl.constexpr(0.6931471805599453)


@aggregate
class Consumer:
    """Arguments of the consumer warpgroups."""

    out_desc: tma.tensor_descriptor
    lse_ptr: Argument
    lse_batch: Argument
    lse_head: Argument
    "strides"
    rings: Rings
    turns: gl.shared_memory_descriptor
    "mbarriers, one for each warpgroup: it may issue its products (ping-pong)"
    mask: base_value
    "a `Mask`, or an aggregate with the same constants and methods: it hides scores of a tile"
    scale: Argument
    "scale of the scores, for exponentials in base 2"
    queue: WorkQueue
    outs: gl.shared_memory_descriptor
    "buffers for outputs that do not fit into the query buffers"
    held_rings: gl.tuple
    "with split queries their first half: a Ring for each warpgroup"
    rests: Rests
    rest_out: gl.tuple
    "descriptor of the output's second piece of dims, or empty"
    stored: gl.tuple
    "buffers of weights that products read from shared memory, one for each warpgroup; empty: weights stay in registers"
    PACKED: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_V: gl.constexpr
    REST_V: gl.constexpr
    "columns of the second piece of dims; 0: there is only one"
    SKIPS: gl.constexpr
    "whether a warpgroup skips the first key tiles, where none of its rows sees a key"
    TURNS: gl.constexpr
    "whether warpgroups issue their products in turn (ping-pong)"
    MIX: gl.constexpr
    "whether one exponential in eight is computed by a polynomial"
    LAZY: gl.constexpr
    "whether the output is rescaled while the next score product runs"
    DOUBLE: gl.constexpr
    "whether the weights are double-buffered in registers; only with LAZY"
    GRID: gl.constexpr


@gluon.jit
@no_type_check
def epilogue(consumer, acc, row_max, sums, place, second_place, done, row, ALONE: gl.constexpr):
    """Store output and lse of a warpgroup's rows from `row`; the output goes through the shared-memory tile `place`.

    An output of two pieces goes through two tiles.  If a tile has half of the output's columns, the output is stored in two
    parts, the second through `second_place`; ALONE: both are the same tile.  Where the tile is not a query buffer, the
    previous output may still be on its way from it.
    """
    out_desc = consumer.out_desc
    work = read_work(consumer.queue, done)
    COLUMNS: gl.constexpr = out_desc.block_shape[4]
    OF_ROWS: gl.constexpr = row_max.type.layout
    row_sum = gl.convert_layout(gl.sum(sums, 1), OF_ROWS)
    empty = row_sum == 0.0  # true for sums above 0, and false for NaN
    total = gl.where(empty, 1.0, row_sum)
    acc = scaled(acc, 1.0 / total)
    if acc[0].shape[1] == COLUMNS:
        store_output(
            out_desc=out_desc,
            place=place,
            part=acc[0],
            start=work.query_start,
            rows=work.queries,
            first=row,
            head=work.head,
            column=0,
        )
        if len(acc) == 2:
            desc = consumer.rest_out[0]
            store_output(
                out_desc=desc,
                place=second_place,
                part=acc[1],
                start=work.query_start,
                rows=work.queries,
                first=row,
                head=work.head,
                column=COLUMNS,
            )
    else:
        first, second = acc[0].reshape([ROWS, 2, COLUMNS]).permute([0, 2, 1]).split()
        tma.store_wait(0)
        sync_warps()
        store_output(
            out_desc=out_desc,
            place=place,
            part=first,
            start=work.query_start,
            rows=work.queries,
            first=row,
            head=work.head,
            column=0,
        )
        if ALONE:
            tma.store_wait(0)
            sync_warps()
        store_output(
            out_desc=out_desc,
            place=second_place,
            part=second,
            start=work.query_start,
            rows=work.queries,
            first=row,
            head=work.head,
            column=COLUMNS,
        )
    lse = gl.where(empty, float("-inf"), (row_max * consumer.scale + gl.log2(total)) * LN_2)
    rows = row + gl.arange(0, ROWS, OF_ROWS)
    starts = gl.cast(work.batch, gl.int64) * consumer.lse_batch + gl.cast(work.head, gl.int64) * consumer.lse_head
    if consumer.PACKED:
        starts += work.query_start
    gl.store(consumer.lse_ptr + starts + rows, lse, mask=rows < work.queries)
