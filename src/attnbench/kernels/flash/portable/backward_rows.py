# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Row-wise kernels of the flash backward: -lse / scale and -delta of each row, dQ, and the rounding of dQ's fp32 sums."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from attnbench.kernels.flash.tiles import (
    BACKWARD_COUNTS,
    Rows,
    first_row,
    keys_of_rows,
    load_tile,
    masked_tile,
    padded_start,
    sees,
    sequence,
    tiles_of,
)
from attnbench.kernels.shared.arguments import Strides
from attnbench.kernels.shared.rows import in_rows, load_rows, section_of, store_rows

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=BACKWARD_COUNTS)
@no_type_check
def flash_backward_prepare(
    out_ptr,
    dout_ptr,
    lse_ptr,
    stats_ptr,
    sums_ptr,
    cu_q_ptr,
    seqlen_q,
    out_strides,
    dout_strides,
    lse_batch,
    lse_head,
    scale,
    stats_rows,
    heads,
    tiles,
    DIM: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PAD: tl.constexpr,
    PACKED: tl.constexpr,
    ATOMIC: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BASE_2: tl.constexpr,
):
    """-lse / scale and -delta of a tile of rows; with ATOMIC also zeros where dQ is accumulated.

    With BASE_2 -lse log2(e) instead of -lse / scale: to be added to scores which have been scaled.

    Rows that see no key and the padding rows between sequences get -inf and 0, so that their probabilities are 0.
    DEPENDENT: the next kernel may be launched before this one ends (programmatic dependent launch), and waits itself for
    what is written here.
    """
    if DEPENDENT:
        gdc_launch_dependents()
    tile = tl.program_id(0) % tiles
    pair = tl.program_id(0) // tiles
    number = pair // heads
    head = pair - number * heads
    bounds = sequence(cu_q_ptr, cu_q_ptr, seqlen_q, seqlen_q, number, PACKED)
    batch, query_start, queries = bounds.batch, bounds.query_start, bounds.queries
    start = tile * BLOCK_M
    if start >= queries:
        return
    out = load_rows(
        base=first_row(out_ptr, batch, query_start, head, out_strides),
        first=start,
        count=queries,
        stride=out_strides.row,
        DIM=DIM_V,
        BLOCK=BLOCK_M,
        BLOCK_DIM=BLOCK_V,
        WHOLE=False,
    )
    dout = load_rows(
        base=first_row(dout_ptr, batch, query_start, head, dout_strides),
        first=start,
        count=queries,
        stride=dout_strides.row,
        DIM=DIM_V,
        BLOCK=BLOCK_M,
        BLOCK_DIM=BLOCK_V,
        WHOLE=False,
    )
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    rows = start + tl.arange(0, BLOCK_M)
    lse_base = first_row(lse_ptr, batch, query_start, head, Strides(batch=lse_batch, row=1, head=lse_head))
    none = float("-inf")
    lse = tl.load(lse_base + rows, mask=rows < queries, other=none)
    # A row without keys has lse -inf; negating it would make its probabilities infinite.
    least = tl.where(lse == none, none, lse * -LOG2_E if BASE_2 else -lse / scale)
    row = tl.cast(head, tl.int64) * stats_rows + padded_start(number, query_start, queries, PACKED, PAD)
    tl.store(stats_ptr + row + rows, least)
    tl.store(stats_ptr + tl.cast(heads, tl.int64) * stats_rows + row + rows, -delta)
    if ATOMIC:
        store_rows(
            base=sums_ptr + row * DIM,
            first=start,
            count=start + BLOCK_M,
            stride=DIM,
            tile=tl.zeros([BLOCK_M, BLOCK_D], tl.float32),
            DIM=DIM,
            BLOCK=BLOCK_M,
            BLOCK_DIM=BLOCK_D,
        )


@triton.jit
@no_type_check
def fold_keys(dq, k, v, q, dout, lse, delta, see, scale_log2, PRECISION: tl.constexpr, MASKED: tl.constexpr):
    """Add one tile of keys to dQ of the tile of rows."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    above = tl.dot(dout, tl.trans(v), input_precision=PRECISION)
    weights = scores * scale_log2 + lse
    if MASKED:
        weights = tl.where(see, weights, float("-inf"))
    down = tl.exp2(weights) * (above + delta)
    return tl.dot(down.to(k.dtype), k, dq, input_precision=PRECISION)


@triton.jit(do_not_specialize=BACKWARD_COUNTS)
@no_type_check
def flash_backward_rows(
    tensors,
    stats_ptr,
    k_desc,
    v_desc,
    cu_q_ptr,
    cu_k_ptr,
    seqlen_q,
    seqlen_k,
    strides,
    scale,
    scale_log2,
    left,
    right,
    stats_rows,
    members,
    heads,
    pairs,
    tiles,
    group,
    META: tl.constexpr,
):
    """dQ of a tile of rows."""
    BLOCK_D: tl.constexpr = META.BLOCK_D
    BLOCK_M: tl.constexpr = META.BLOCK_M
    PRECISION: tl.constexpr = META.PRECISION
    # The tile of rows of this program; the last rows see most keys, so their tiles come first.
    tile, pair = section_of(tl.program_id(0), tiles, pairs, group)
    number = pair // heads
    head = pair - number * heads
    head_kv = head // members
    bounds = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, number, META.PACKED)
    batch, queries, keys = bounds.batch, bounds.queries, bounds.keys
    query_start, key_start = bounds.query_start, bounds.key_start
    start = (tiles - 1 - tile) * BLOCK_M
    if start >= queries:
        return
    q = load_rows(
        base=first_row(tensors.q, batch, query_start, head, strides.q),
        first=start,
        count=queries,
        stride=strides.q.row,
        DIM=META.DIM,
        BLOCK=BLOCK_M,
        BLOCK_DIM=BLOCK_D,
        WHOLE=False,
    )
    dout = load_rows(
        base=first_row(tensors.dout, batch, query_start, head, strides.dout),
        first=start,
        count=queries,
        stride=strides.dout.row,
        DIM=META.DIM_V,
        BLOCK=BLOCK_M,
        BLOCK_DIM=META.BLOCK_V,
        WHOLE=False,
    )
    k_rows = Rows(
        base=first_row(tensors.k, batch, key_start, head_kv, strides.k),
        desc=k_desc,
        batch=batch,
        start=key_start,
        head=head_kv,
        count=keys,
        stride=strides.k.row,
    )
    v_rows = Rows(
        base=first_row(tensors.v, batch, key_start, head_kv, strides.v),
        desc=v_desc,
        batch=batch,
        start=key_start,
        head=head_kv,
        count=keys,
        stride=strides.v.row,
    )
    stats = (
        stats_ptr
        + tl.cast(head, tl.int64) * stats_rows
        + padded_start(number, query_start, queries, META.PACKED, META.PAD)
        + start
        + tl.arange(0, BLOCK_M)
    )
    lse = (tl.load(stats) * scale_log2)[:, None]
    delta = tl.load(stats + tl.cast(heads, tl.int64) * stats_rows)[:, None]
    shift = keys - queries
    reach = keys_of_rows(
        first=start,
        last=tl.minimum(start + BLOCK_M, queries) - 1,
        keys=keys,
        shift=shift,
        left=left,
        right=right,
        HAS_LEFT=META.HAS_LEFT,
        HAS_RIGHT=META.HAS_RIGHT,
    )
    key_tiles = tiles_of(reach, META.BLOCK_N)
    whole, split = key_tiles.whole, key_tiles.split
    rows = start + tl.arange(0, BLOCK_M)[:, None]
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for at in tl.range(whole * META.BLOCK_N, split * META.BLOCK_N, META.BLOCK_N, disable_licm=True):
        k = load_tile(k_rows, at, META.DIM, META.BLOCK_N, BLOCK_D, True, META.TMA)
        v = load_tile(v_rows, at, META.DIM_V, META.BLOCK_N, META.BLOCK_V, True, META.TMA)
        dq = fold_keys(
            dq=dq,
            k=k,
            v=v,
            q=q,
            dout=dout,
            lse=lse,
            delta=delta,
            see=None,
            scale_log2=scale_log2,
            PRECISION=PRECISION,
            MASKED=False,
        )
    for index in tl.range(
        0, whole - key_tiles.begin + key_tiles.end - split, num_stages=META.MASKED_STAGES, disable_licm=True
    ):
        at = masked_tile(index, key_tiles) * META.BLOCK_N
        k = load_tile(k_rows, at, META.DIM, META.BLOCK_N, BLOCK_D, False, META.TMA and not META.PACKED)
        v = load_tile(v_rows, at, META.DIM_V, META.BLOCK_N, META.BLOCK_V, False, META.TMA and not META.PACKED)
        see = sees(
            rows=rows,
            columns=at + tl.arange(0, META.BLOCK_N)[None, :],
            keys=keys,
            shift=shift,
            left=left,
            right=right,
            HAS_LEFT=META.HAS_LEFT,
            HAS_RIGHT=META.HAS_RIGHT,
        )
        dq = fold_keys(
            dq=dq,
            k=k,
            v=v,
            q=q,
            dout=dout,
            lse=lse,
            delta=delta,
            see=see,
            scale_log2=scale_log2,
            PRECISION=PRECISION,
            MASKED=True,
        )
    store_rows(
        base=first_row(tensors.dq, batch, query_start, head, strides.dq),
        first=start,
        count=queries,
        stride=strides.dq.row,
        tile=dq * scale,
        DIM=META.DIM,
        BLOCK=BLOCK_M,
        BLOCK_DIM=BLOCK_D,
    )


@triton.jit(do_not_specialize=BACKWARD_COUNTS)
@no_type_check
def flash_backward_round(
    sums_ptr,
    dq_ptr,
    cu_q_ptr,
    seqlen_q,
    dq_strides,
    scale,
    stats_rows,
    heads,
    tiles,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PAD: tl.constexpr,
    PACKED: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Scale the sums that atomics accumulated, a tile of rows, and round them into dQ.

    PARTS: the 64-row order of `in_rows`, of a kernel before whose end this one may be launched.
    """
    if PARTS:
        gdc_wait()  # In every program: the kernel after this one relies on the one before it having ended.
    tile = tl.program_id(0) % tiles
    pair = tl.program_id(0) // tiles
    number = pair // heads
    head = pair - number * heads
    bounds = sequence(cu_q_ptr, cu_q_ptr, seqlen_q, seqlen_q, number, PACKED)
    batch, query_start, queries = bounds.batch, bounds.query_start, bounds.queries
    start = tile * BLOCK_M
    if start >= queries:
        return
    row = tl.cast(head, tl.int64) * stats_rows + padded_start(number, query_start, queries, PACKED, PAD)
    if PARTS:
        base = sums_ptr + (row + start) * COLUMNS
        # In their order in memory, because it is read at several times the speed of scattered words.
        total = in_rows(tl.load(base + tl.arange(0, BLOCK_M * BLOCK_D)), BLOCK_D)
    else:
        total = load_rows(
            base=sums_ptr + row * COLUMNS,
            first=start,
            count=queries,
            stride=COLUMNS,
            DIM=DIM,
            BLOCK=BLOCK_M,
            BLOCK_DIM=BLOCK_D,
            WHOLE=False,
        )
    store_rows(
        base=first_row(dq_ptr, batch, query_start, head, dq_strides),
        first=start,
        count=queries,
        stride=dq_strides.row,
        tile=total * scale,
        DIM=DIM,
        BLOCK=BLOCK_M,
        BLOCK_DIM=BLOCK_D,
    )
