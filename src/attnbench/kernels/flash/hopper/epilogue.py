# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The epilogue of the flash forward for Hopper: output by way of shared memory, and lse."""

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
    """What the consumer warpgroups work with."""

    out_desc: tma.tensor_descriptor
    lse_ptr: Argument
    lse_batch: Argument
    lse_head: Argument
    "strides"
    rings: Rings
    turns: gl.shared_memory_descriptor
    "mbarriers, one a warpgroup: whose turn it is to issue products"
    mask: base_value
    "a `Mask`, or what has its constants and methods: it says what of a tile is hidden"
    scale: Argument
    "of scores, for powers of two"
    queue: WorkQueue
    outs: gl.shared_memory_descriptor
    "tiles by way of which outputs leave that do not fit where the queries were"
    held_rings: gl.tuple
    "of queries that are split the first half, a Ring for each warpgroup"
    rests: Rests
    rest_out: gl.tuple
    "the output's descriptor of dims' second piece, or nothing"
    stored: gl.tuple
    "places of weights that products read from shared memory, one a warpgroup; or nothing: they are in registers"
    PACKED: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_V: gl.constexpr
    REST_V: gl.constexpr
    "columns of dims' second piece, 0: they are one"
    SKIPS: gl.constexpr
    "whether a warpgroup leaves out the first tiles of keys where its rows see none of them"
    TURNS: gl.constexpr
    "whether warpgroups take turns"
    MIX: gl.constexpr
    "one exponential in eight by a polynomial"
    LAZY: gl.constexpr
    "the output takes a softmax's factor beside the next scores"
    DOUBLE: gl.constexpr
    "the weights of two tiles have registers; with LAZY"
    GRID: gl.constexpr


@gluon.jit
@no_type_check
def epilogue(consumer, acc, row_max, sums, place, second_place, done, row, ALONE: gl.constexpr):
    """Output and lse of a warpgroup's rows, those from `row`; the output by way of `place`, a tile of shared memory.

    In two pieces it leaves by two places.  By places of half the columns it leaves in two parts, the second by way of
    `second_place`: ALONE, that is the same place.  Where no queries have the place, the last output may still be on its
    way from there.
    """
    out_desc = consumer.out_desc
    work = read_work(consumer.queue, done)
    COLUMNS: gl.constexpr = out_desc.block_shape[4]
    OF_ROWS: gl.constexpr = row_max.type.layout
    row_sum = gl.convert_layout(gl.sum(sums, 1), OF_ROWS)
    empty = row_sum == 0.0  # which NaN is not
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
