# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""How an output of the flash forward for Hopper leaves: by way of shared memory, and what may come in its place."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attnbench.kernels.flash.hopper.tiles import told_job
from attnbench.kernels.shared.hopper import ROWS, put, sync_warps

LN_2 = gl.constexpr(0.6931471805599453)


@gluon.jit
@no_type_check
def send(given, acc, row_max, sums, place, beside, done, row, PACKED: gl.constexpr,
         ALONE: gl.constexpr):
    """Output and lse of a warpgroup's rows, those from `row`; the output by way of `place`, a tile of shared memory.

    By places of half the columns it leaves in two parts, the second by way of `beside`: ALONE, that is the same place.
    Where no queries have the place, the last output may still be on its way from there.
    """
    out_desc, lse_ptr, lse_batch, lse_head, _rings, _turns, _reach, scale, tickets, _outs, _held_rings = given
    query_start, head, batch, queries, _keys, _first, _begin, _whole, _split, _end = told_job(tickets, done)
    COLUMNS: gl.constexpr = out_desc.block_shape[4]
    OF_ROWS: gl.constexpr = row_max.type.layout
    row_sum = gl.convert_layout(gl.sum(sums, 1), OF_ROWS)
    empty = row_sum == 0.0  # which NaN is not
    total = gl.where(empty, 1.0, row_sum)
    acc = acc * gl.convert_layout(1.0 / total, gl.SliceLayout(1, acc.type.layout))[:, None]
    if acc.shape[1] == COLUMNS:
        put(out_desc, place, acc, query_start, queries, row, head, 0)
    else:
        first, second = acc.reshape([ROWS, 2, COLUMNS]).permute([0, 2, 1]).split()
        tma.store_wait(0)
        sync_warps()
        put(out_desc, place, first, query_start, queries, row, head, 0)
        if ALONE:
            tma.store_wait(0)
            sync_warps()
        put(out_desc, beside, second, query_start, queries, row, head, COLUMNS)
    lse = gl.where(empty, float("-inf"), (row_max * scale + gl.log2(total)) * LN_2)
    rows = row + gl.arange(0, ROWS, OF_ROWS)
    starts = gl.cast(batch, gl.int64) * lse_batch + gl.cast(head, gl.int64) * lse_head
    if PACKED:
        starts += query_start
    gl.store(lse_ptr + starts + rows, lse, mask=rows < queries)
