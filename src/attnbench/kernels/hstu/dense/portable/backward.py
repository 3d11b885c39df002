# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Dense HSTU attention backward: S is recomputed, nothing of the forward is kept.

    dV = c Aᵀ dO      dS = dO Vᵀ ∘ M ∘ σ(x)(1 + x(1 - σ(x))), x = α S      dQ = α c dS K      dK = α c dSᵀ Q

A column program has a tile of keys and loops over the rows that see them, with dK and dV in registers: four products a
tile (five where registers do not hold both, and dV has a launch of its own).  dQ is then computed by row programs, three
products a tile (deterministic: seven products instead of five, no workspace), or accumulated in fp32 by atomics in the
column programs (five products; the order of the sums varies; workspace 4 D bytes for each query and head, and two passes
over it).  For Hopper the latter is a kernel of its own, hopper.backward.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from attnbench.kernels.hstu.dense.portable.backward_step import fold_keys, fold_rows
from attnbench.kernels.hstu.tiles import (
    COUNTS,
    SUMS_ROWS,
    Rows,
    first_sum,
    load_whole,
    masked_tile,
    rows_of_keys,
    sees,
    sequence,
    tiles_of_rows,
)
from attnbench.kernels.shared.rows import add_rows, in_rows, load_rows, section_of, store_rows


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_dense_backward_columns(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    q_desc,
    dout_desc,
    dq_desc,
    sequences,
    strides,
    half_alpha,
    dk_scale,
    dv_scale,
    heads,
    pairs,
    tiles,
    group,
    contextual_len,
    window,
    META: tl.constexpr,
):
    """dK and dV of a tile of keys; with ATOMIC also its part of dQ, unscaled, added to the fp32 `dq_ptr`."""
    BLOCK_D: tl.constexpr = META.BLOCK_D
    BLOCK_V: tl.constexpr = META.BLOCK_V
    BLOCK_N: tl.constexpr = META.BLOCK_N
    PRECISION: tl.constexpr = META.PRECISION
    PART: tl.constexpr = META.PART
    # The tile of keys of this program; the first keys are seen by most rows, so their tiles come first.
    tile, pair = section_of(tl.program_id(0), tiles, pairs, group)
    number = pair // heads
    head = (pair - number * heads).to(tl.int64)
    bounds = sequence(sequences, number, contextual_len, META.HAS_PREFIX, META.HAS_TARGETS, META.HAS_CACHE)
    queries = bounds.keys - bounds.first_query
    start = tile * BLOCK_N
    if start >= bounds.keys:
        return
    q_base = q_ptr + bounds.query_start * strides.q.row + head * strides.q.head
    dout_base = dout_ptr + bounds.query_start * strides.dout.row + head * strides.dout.head
    dq_base = dq_ptr + bounds.query_start * strides.dq.row + head * strides.dq.head
    q_rows = Rows(base=q_base, desc=q_desc, start=bounds.query_start, head=head, stride=strides.q.row)
    dout_rows = Rows(base=dout_base, desc=dout_desc, start=bounds.query_start, head=head, stride=strides.dout.row)
    k = load_rows(
        k_ptr + bounds.key_start * strides.k.row + head * strides.k.head,
        start,
        bounds.keys,
        strides.k.row,
        META.ATTN_DIM,
        BLOCK_N,
        BLOCK_D,
        WHOLE=False,
    )
    v = load_rows(
        v_ptr + bounds.key_start * strides.v.row + head * strides.v.head,
        start,
        bounds.keys,
        strides.v.row,
        META.LINEAR_DIM,
        BLOCK_N,
        BLOCK_V,
        WHOLE=False,
    )
    keys_at = start + tl.arange(0, BLOCK_N)[:, None]
    # An accumulator that this launch does not need is a tile of one element.
    dk = tl.zeros([1, 1] if PART == "dv" else [BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([1, 1] if PART == "dk" else [BLOCK_N, BLOCK_V], tl.float32)

    # In whole tiles of queries: the prefix, then [begin, whole) masked, [whole, split) unmasked, [split, end) masked.
    reach = rows_of_keys(
        first=start,
        last=tl.minimum(start + BLOCK_N, bounds.keys) - 1,
        rows=bounds.keys,
        prefix=bounds.prefix,
        seen=bounds.seen,
        window=window,
        CAUSAL=META.CAUSAL,
        HAS_PREFIX=META.HAS_PREFIX,
        HAS_TARGETS=META.HAS_TARGETS,
        HAS_WINDOW=META.HAS_WINDOW,
    )
    front = 0
    if META.HAS_PREFIX:
        front = tl.where(
            start < bounds.seen,
            (tl.maximum(bounds.prefix - bounds.first_query, 0) + META.BLOCK_M - 1) // META.BLOCK_M,
            0,
        )
    begin = tl.maximum(tl.maximum(reach.low - bounds.first_query, 0) // META.BLOCK_M, front)
    end = tl.maximum((tl.maximum(reach.high - bounds.first_query, 0) + META.BLOCK_M - 1) // META.BLOCK_M, begin)
    whole = (tl.maximum(reach.all_low - bounds.first_query, 0) + META.BLOCK_M - 1) // META.BLOCK_M
    whole = tl.minimum(tl.maximum(whole, begin), end)
    # A partial last tile is masked: it is followed by another sequence.
    split = tl.maximum(reach.all_high - bounds.first_query, 0) // META.BLOCK_M
    split = tl.minimum(tl.maximum(split, whole), end)
    for at in tl.range(whole * META.BLOCK_M, split * META.BLOCK_M, META.BLOCK_M, disable_licm=True):
        q = load_whole(q_rows, at, META.ATTN_DIM, META.BLOCK_M, BLOCK_D, META.TMA)
        dout = load_whole(dout_rows, at, META.LINEAR_DIM, META.BLOCK_M, BLOCK_V, META.TMA)
        folded = fold_rows(
            dk=dk,
            dv=dv,
            q=q,
            dout=dout,
            k=k,
            v=v,
            see=None,
            half_alpha=half_alpha,
            APPROXIMATE=META.APPROXIMATE,
            PRECISION=PRECISION,
            MASKED=False,
            PART=PART,
        )
        dk, dv = folded.dk, folded.dv
        if META.ATOMIC:
            part = tl.dot(tl.trans(folded.down), k, input_precision=PRECISION)  # [META.BLOCK_M, BLOCK_D]
            if META.TMA:
                dq_desc.atomic_add(
                    [tl.cast(bounds.query_start + at, tl.int32), tl.cast(head, tl.int32), 0],
                    part.reshape(META.BLOCK_M, 1, BLOCK_D),
                )
            else:
                add_rows(
                    base=dq_base,
                    first=at,
                    count=queries,
                    stride=strides.dq.row,
                    tile=part,
                    DIM=META.ATTN_DIM,
                    BLOCK=META.BLOCK_M,
                    BLOCK_DIM=BLOCK_D,
                )
    before = front + whole - begin
    for index in tl.range(0, before + end - split, num_stages=META.MASKED_STAGES, disable_licm=True):
        tile_m = tl.where(index < before, begin + index - front, split + index - before)
        if META.HAS_PREFIX:
            tile_m = tl.where(index < front, index, tile_m)
        at = tile_m * META.BLOCK_M
        q = load_rows(q_base, at, queries, strides.q.row, META.ATTN_DIM, META.BLOCK_M, BLOCK_D, WHOLE=False)
        dout = load_rows(dout_base, at, queries, strides.dout.row, META.LINEAR_DIM, META.BLOCK_M, BLOCK_V, WHOLE=False)
        rows = bounds.first_query + at + tl.arange(0, META.BLOCK_M)[None, :]
        see = sees(
            rows=rows,
            keys=keys_at,
            prefix=bounds.prefix,
            seen=bounds.seen,
            window=window,
            CAUSAL=META.CAUSAL,
            HAS_PREFIX=META.HAS_PREFIX,
            HAS_TARGETS=META.HAS_TARGETS,
            HAS_WINDOW=META.HAS_WINDOW,
        )
        folded = fold_rows(
            dk=dk,
            dv=dv,
            q=q,
            dout=dout,
            k=k,
            v=v,
            see=see,
            half_alpha=half_alpha,
            APPROXIMATE=META.APPROXIMATE,
            PRECISION=PRECISION,
            MASKED=True,
            PART=PART,
        )
        dk, dv = folded.dk, folded.dv
        if META.ATOMIC:
            part = tl.dot(tl.trans(folded.down), k, input_precision=PRECISION)
            add_rows(
                base=dq_base,
                first=at,
                count=queries,
                stride=strides.dq.row,
                tile=part,
                DIM=META.ATTN_DIM,
                BLOCK=META.BLOCK_M,
                BLOCK_DIM=BLOCK_D,
            )
    if PART != "dv":
        store_rows(
            base=dk_ptr + bounds.key_start * strides.dk.row + head * strides.dk.head,
            first=start,
            count=bounds.keys,
            stride=strides.dk.row,
            tile=dk * dk_scale,
            DIM=META.ATTN_DIM,
            BLOCK=BLOCK_N,
            BLOCK_DIM=BLOCK_D,
        )
    if PART != "dk":
        store_rows(
            base=dv_ptr + bounds.key_start * strides.dv.row + head * strides.dv.head,
            first=start,
            count=bounds.keys,
            stride=strides.dv.row,
            tile=dv * dv_scale,
            DIM=META.LINEAR_DIM,
            BLOCK=BLOCK_N,
            BLOCK_DIM=BLOCK_V,
        )


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_dense_backward_rows(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    dq_ptr,
    k_desc,
    v_desc,
    sequences,
    strides,
    half_alpha,
    dq_scale,
    heads,
    pairs,
    tiles,
    group,
    contextual_len,
    window,
    META: tl.constexpr,
):
    """dQ of a tile of rows."""
    BLOCK_D: tl.constexpr = META.BLOCK_D
    BLOCK_M: tl.constexpr = META.BLOCK_M
    PRECISION: tl.constexpr = META.PRECISION
    # The tile of rows of this program; the last rows see most keys, so their tiles come first.
    tile, pair = section_of(tl.program_id(0), tiles, pairs, group)
    number = pair // heads
    head = (pair - number * heads).to(tl.int64)
    bounds = sequence(sequences, number, contextual_len, META.HAS_PREFIX, META.HAS_TARGETS, META.HAS_CACHE)
    queries = bounds.keys - bounds.first_query
    start = (tiles - 1 - tile) * BLOCK_M
    if start >= queries:
        return
    q = load_rows(
        q_ptr + bounds.query_start * strides.q.row + head * strides.q.head,
        start,
        queries,
        strides.q.row,
        META.ATTN_DIM,
        BLOCK_M,
        BLOCK_D,
        WHOLE=False,
    )
    dout = load_rows(
        dout_ptr + bounds.query_start * strides.dout.row + head * strides.dout.head,
        start,
        queries,
        strides.dout.row,
        META.LINEAR_DIM,
        BLOCK_M,
        META.BLOCK_V,
        WHOLE=False,
    )
    k_base = k_ptr + bounds.key_start * strides.k.row + head * strides.k.head
    v_base = v_ptr + bounds.key_start * strides.v.row + head * strides.v.head
    k_rows = Rows(base=k_base, desc=k_desc, start=bounds.key_start, head=head, stride=strides.k.row)
    v_rows = Rows(base=v_base, desc=v_desc, start=bounds.key_start, head=head, stride=strides.v.row)
    first = bounds.first_query + start
    key_tiles = tiles_of_rows(
        first=first,
        last=tl.minimum(first + BLOCK_M, bounds.keys) - 1,
        prefix=bounds.prefix,
        seen=bounds.seen,
        window=window,
        CAUSAL=META.CAUSAL,
        HAS_PREFIX=META.HAS_PREFIX,
        HAS_TARGETS=META.HAS_TARGETS,
        HAS_WINDOW=META.HAS_WINDOW,
        BLOCK_N=META.BLOCK_N,
    )
    rows = first + tl.arange(0, BLOCK_M)[:, None]
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for at in tl.range(key_tiles.whole * META.BLOCK_N, key_tiles.split * META.BLOCK_N, META.BLOCK_N, disable_licm=True):
        k = load_whole(k_rows, at, META.ATTN_DIM, META.BLOCK_N, BLOCK_D, META.TMA)
        v = load_whole(v_rows, at, META.LINEAR_DIM, META.BLOCK_N, META.BLOCK_V, META.TMA)
        dq = fold_keys(
            dq=dq,
            k=k,
            v=v,
            q=q,
            dout=dout,
            see=None,
            half_alpha=half_alpha,
            APPROXIMATE=META.APPROXIMATE,
            PRECISION=PRECISION,
            MASKED=False,
        )
    for index in tl.range(0, key_tiles.masked, num_stages=META.MASKED_STAGES, disable_licm=True):
        at = masked_tile(index, key_tiles, META.HAS_TARGETS, META.HAS_WINDOW) * META.BLOCK_N
        k = load_rows(k_base, at, bounds.keys, strides.k.row, META.ATTN_DIM, META.BLOCK_N, BLOCK_D, WHOLE=False)
        v = load_rows(v_base, at, bounds.keys, strides.v.row, META.LINEAR_DIM, META.BLOCK_N, META.BLOCK_V, WHOLE=False)
        see = sees(
            rows=rows,
            keys=at + tl.arange(0, META.BLOCK_N)[None, :],
            prefix=bounds.prefix,
            seen=bounds.seen,
            window=window,
            CAUSAL=META.CAUSAL,
            HAS_PREFIX=META.HAS_PREFIX,
            HAS_TARGETS=META.HAS_TARGETS,
            HAS_WINDOW=META.HAS_WINDOW,
        )
        dq = fold_keys(
            dq=dq,
            k=k,
            v=v,
            q=q,
            dout=dout,
            see=see,
            half_alpha=half_alpha,
            APPROXIMATE=META.APPROXIMATE,
            PRECISION=PRECISION,
            MASKED=True,
        )
    store_rows(
        base=dq_ptr + bounds.query_start * strides.dq.row + head * strides.dq.head,
        first=start,
        count=queries,
        stride=strides.dq.row,
        tile=dq * dq_scale,
        DIM=META.ATTN_DIM,
        BLOCK=BLOCK_M,
        BLOCK_DIM=BLOCK_D,
    )


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_dense_backward_round(
    sum_ptr,
    dq_ptr,
    dq_strides,
    rows,
    heads,
    dq_scale,
    ATTN_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Round the fp32 sums [rows = Tq H, D] that atomics accumulated into dQ.

    DEPENDENT: launched before the end of the kernel that accumulates.
    """
    if DEPENDENT:
        gdc_wait()
    # One 64-bit division per program and 32-bit ones per row, none per element: this kernel is limited by memory.
    first = tl.program_id(0).to(tl.int64) * ROWS
    query = first // heads
    behind = (first - query * heads).to(tl.int32) + tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_D)
    mask = (first + tl.arange(0, ROWS) < rows)[:, None]
    if ATTN_DIM != BLOCK_D:
        mask = mask & (dims[None, :] < ATTN_DIM)
    total = tl.load(sum_ptr + first * ATTN_DIM + (tl.arange(0, ROWS)[:, None] * ATTN_DIM + dims[None, :]), mask=mask)
    where = (query + behind // heads) * dq_strides.row + (behind % heads).to(tl.int64) * dq_strides.head
    tl.store(dq_ptr + where[:, None] + dims[None, :], (total * dq_scale).to(dq_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_dense_backward_round_tiles(
    sums_ptr,
    dq_ptr,
    sequences,
    dq_strides,
    sums_rows,
    heads,
    tiles,
    dq_scale,
    ATTN_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
):
    """The same for sums [H, rows, COLUMNS] in tiles of 64 rows, in the order of `in_rows`; launched as with DEPENDENT."""
    gdc_wait()
    tile = tl.program_id(0) % tiles
    pair = tl.program_id(0) // tiles
    number = pair // heads
    head = tl.cast(pair - number * heads, tl.int64)
    bounds = sequence(sequences, number, 0, False, False, HAS_CACHE)
    queries = bounds.keys - bounds.first_query
    start = tile * SUMS_ROWS
    if start >= queries:
        return
    row = head * sums_rows + first_sum(number, bounds.query_start) + start
    # In their order in memory, because it is read at several times the speed of scattered words.
    total = in_rows(tl.load(sums_ptr + row * COLUMNS + tl.arange(0, SUMS_ROWS * BLOCK_D)), BLOCK_D)
    store_rows(
        base=dq_ptr + bounds.query_start * dq_strides.row + head * dq_strides.head,
        first=start,
        count=queries,
        stride=dq_strides.row,
        tile=total * dq_scale,
        DIM=ATTN_DIM,
        BLOCK=SUMS_ROWS,
        BLOCK_DIM=BLOCK_D,
    )
