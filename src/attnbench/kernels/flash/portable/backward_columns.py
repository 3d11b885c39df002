# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""dK and dV of flash attention, one program for a tile of keys; dQ too where atomics accumulate it.

A program loops over the rows that see its tile of keys, for all query heads of its KV head one after another, so dK and
dV are summed in a fixed order.  Scores are computed transposed, [keys, rows], so that P and dS are product operands in
the layout in which the softmax leaves them.  The accumulators of both products start at the values that would otherwise
be subtracted, -lse / scale and -delta (`flash_backward_prepare`), so these are not held in registers during the softmax.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.portable.backward_step import Mask, add_part, begin_at, fold_rows, hide
from attnbench.kernels.flash.tiles import (
    BACKWARD_COUNTS,
    Rows,
    TileRange,
    first_row,
    load_tile,
    masked_tile,
    padded_start,
    rows_of_keys,
    sequence,
    tiles_of,
)
from attnbench.kernels.shared.rows import load_rows, section_of, store_rows


@triton.jit(do_not_specialize=BACKWARD_COUNTS)
@no_type_check
def flash_backward_columns(
    tensors,
    sums_ptr,
    stats_ptr,
    q_desc,
    dout_desc,
    sums_desc,
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
    heads_kv,
    pairs,
    tiles,
    group,
    META: tl.constexpr,
):
    """dK and dV of a tile of keys; with ATOMIC also its part of dQ, unscaled, added to `sums_ptr` [H, rows, D]."""
    BLOCK_D: tl.constexpr = META.BLOCK_D
    BLOCK_V: tl.constexpr = META.BLOCK_V
    BLOCK_N: tl.constexpr = META.BLOCK_N
    ORDER: tl.constexpr = META.ORDER
    PRECISION: tl.constexpr = META.PRECISION
    # The tile of keys of this program; the first keys are seen by most rows, so their tiles come first.
    tile, pair = section_of(tl.program_id(0), tiles, pairs, group)
    number = pair // heads_kv
    head_kv = pair - number * heads_kv
    bounds = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, number, META.PACKED)
    batch, queries, keys = bounds.batch, bounds.queries, bounds.keys
    start = tile * BLOCK_N
    if start >= keys:
        return
    k = load_rows(
        base=first_row(tensors.k, batch, bounds.key_start, head_kv, strides.k),
        first=start,
        count=keys,
        stride=strides.k.row,
        DIM=META.DIM,
        BLOCK=BLOCK_N,
        BLOCK_DIM=BLOCK_D,
        WHOLE=False,
    )
    v = load_rows(
        base=first_row(tensors.v, batch, bounds.key_start, head_kv, strides.v),
        first=start,
        count=keys,
        stride=strides.v.row,
        DIM=META.DIM_V,
        BLOCK=BLOCK_N,
        BLOCK_DIM=BLOCK_V,
        WHOLE=False,
    )
    columns = start + tl.arange(0, BLOCK_N)[:, None]
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)

    # In whole tiles of rows: [begin, whole) masked, [whole, split) unmasked, [split, end) masked.
    shift = keys - queries
    reach = rows_of_keys(
        first=start,
        last=tl.minimum(start + BLOCK_N, keys) - 1,
        queries=queries,
        shift=shift,
        left=left,
        right=right,
        HAS_LEFT=META.HAS_LEFT,
        HAS_RIGHT=META.HAS_RIGHT,
    )
    row_tiles = tiles_of(reach, META.BLOCK_M)
    begin, whole, split, end = row_tiles.begin, row_tiles.whole, row_tiles.split, row_tiles.end
    if start + BLOCK_N > keys:
        # Keys past the end are loaded as zeros, but their probabilities would not be 0: such a tile is masked.
        whole = end
        split = end
    row_tiles = TileRange(begin=begin, whole=whole, split=split, end=end)
    mask = Mask(
        whole=whole, split=split, columns=columns, queries=queries, keys=keys, shift=shift, left=left, right=right
    )
    # With META.FUSED this loop processes all tiles.
    first = begin if META.FUSED else whole
    last = end if META.FUSED else split
    padded = padded_start(number, bounds.query_start, queries, META.PACKED, META.PAD)
    for member in range(members if META.GROUPED else 1):
        head = head_kv * members + member
        q_rows = Rows(
            base=first_row(tensors.q, batch, bounds.query_start, head, strides.q),
            desc=q_desc,
            batch=batch,
            start=bounds.query_start,
            head=head,
            count=queries,
            stride=strides.q.row,
        )
        dout_rows = Rows(
            base=first_row(tensors.dout, batch, bounds.query_start, head, strides.dout),
            desc=dout_desc,
            batch=batch,
            start=bounds.query_start,
            head=head,
            count=queries,
            stride=strides.dout.row,
        )
        row = tl.cast(head, tl.int64) * stats_rows + padded
        lse_ptr = stats_ptr + row
        delta_ptr = lse_ptr + tl.cast(heads_kv * members, tl.int64) * stats_rows
        if META.ATOMIC:
            sums_base = sums_ptr + row * META.DIM
        if ORDER == "ahead":
            if first < last:
                at = first * META.BLOCK_M
                q = load_tile(q_rows, at, META.DIM, META.BLOCK_M, BLOCK_D, True, META.TMA)
                scores = tl.dot(k, tl.trans(q), begin_at(lse_ptr, at, META.BLOCK_M, BLOCK_N), input_precision=PRECISION)
                scores = hide(scores, at, mask, META, False)
                weights = tl.exp2(scores * scale_log2)
                for at in tl.range(
                    first * META.BLOCK_M,
                    (last - 1) * META.BLOCK_M,
                    META.BLOCK_M,
                    num_stages=META.STAGES,
                    disable_licm=True,
                ):
                    dout = load_tile(dout_rows, at, META.DIM_V, META.BLOCK_M, BLOCK_V, True, META.TMA)
                    above = tl.dot(
                        v, tl.trans(dout), begin_at(delta_ptr, at, META.BLOCK_M, BLOCK_N), input_precision=PRECISION
                    )
                    dv = tl.dot(weights.to(dout.dtype), dout, dv, input_precision=PRECISION)
                    down = (weights * above).to(dout.dtype)
                    if META.ATOMIC and META.BESIDE:
                        part = tl.dot(tl.trans(down), k, input_precision=PRECISION)
                    following = at + META.BLOCK_M
                    ahead = load_tile(q_rows, following, META.DIM, META.BLOCK_M, BLOCK_D, True, META.TMA)
                    scores = tl.dot(
                        k,
                        tl.trans(ahead),
                        begin_at(lse_ptr, following, META.BLOCK_M, BLOCK_N),
                        input_precision=PRECISION,
                    )
                    # The tile is loaded twice, so that it need not be kept across iterations.
                    q = load_tile(q_rows, at, META.DIM, META.BLOCK_M, BLOCK_D, True, META.TMA)
                    dk = tl.dot(down, q, dk, input_precision=PRECISION)
                    # Overlaps with the product above, which is not waited for until this is done.
                    scores = hide(scores, following, mask, META, False)
                    weights = tl.exp2(scores * scale_log2)
                    if META.ATOMIC:
                        if not META.BESIDE:
                            part = tl.dot(tl.trans(down), k, input_precision=PRECISION)
                        add_part(
                            base=sums_base,
                            desc=sums_desc,
                            row=row,
                            first=at,
                            part=part,
                            DIM=META.DIM,
                            BLOCK_M=META.BLOCK_M,
                            BLOCK_D=BLOCK_D,
                            TMA=META.TMA_ADD,
                        )
                at = (last - 1) * META.BLOCK_M
                q = load_tile(q_rows, at, META.DIM, META.BLOCK_M, BLOCK_D, True, META.TMA)
                dout = load_tile(dout_rows, at, META.DIM_V, META.BLOCK_M, BLOCK_V, True, META.TMA)
                above = tl.dot(
                    v, tl.trans(dout), begin_at(delta_ptr, at, META.BLOCK_M, BLOCK_N), input_precision=PRECISION
                )
                dv = tl.dot(weights.to(dout.dtype), dout, dv, input_precision=PRECISION)
                down = (weights * above).to(dout.dtype)
                dk = tl.dot(down, q, dk, input_precision=PRECISION)
                if META.ATOMIC:
                    part = tl.dot(tl.trans(down), k, input_precision=PRECISION)
                    add_part(
                        base=sums_base,
                        desc=sums_desc,
                        row=row,
                        first=at,
                        part=part,
                        DIM=META.DIM,
                        BLOCK_M=META.BLOCK_M,
                        BLOCK_D=BLOCK_D,
                        TMA=META.TMA_ADD,
                    )
        else:
            for at in tl.range(
                first * META.BLOCK_M, last * META.BLOCK_M, META.BLOCK_M, num_stages=META.STAGES, disable_licm=True
            ):
                q = load_tile(q_rows, at, META.DIM, META.BLOCK_M, BLOCK_D, True, META.TMA)
                dout = load_tile(dout_rows, at, META.DIM_V, META.BLOCK_M, BLOCK_V, True, META.TMA)
                folded = fold_rows(
                    dk=dk,
                    dv=dv,
                    q=q,
                    dout=dout,
                    k=k,
                    v=v,
                    lse_at=begin_at(lse_ptr, at, META.BLOCK_M, BLOCK_N),
                    delta_at=begin_at(delta_ptr, at, META.BLOCK_M, BLOCK_N),
                    scale_log2=scale_log2,
                    at=at,
                    mask=mask,
                    META=META,
                    MASKED=False,
                )
                dk, dv = folded.dk, folded.dv
                if META.ATOMIC:
                    add_part(
                        base=sums_base,
                        desc=sums_desc,
                        row=row,
                        first=at,
                        part=folded.part,
                        DIM=META.DIM,
                        BLOCK_M=META.BLOCK_M,
                        BLOCK_D=BLOCK_D,
                        TMA=META.TMA_ADD,
                    )
        for index in tl.range(
            0, 0 if META.FUSED else whole - begin + end - split, num_stages=META.MASKED_STAGES, disable_licm=True
        ):
            at = masked_tile(index, row_tiles) * META.BLOCK_M
            q = load_tile(q_rows, at, META.DIM, META.BLOCK_M, BLOCK_D, False, META.TMA)
            dout = load_tile(dout_rows, at, META.DIM_V, META.BLOCK_M, BLOCK_V, False, META.TMA)
            if META.TMA and META.PACKED:
                # A descriptor does not end at the end of a packed sequence.
                own = (at + tl.arange(0, META.BLOCK_M) < queries)[:, None]
                q = tl.where(own, q, 0.0)
                dout = tl.where(own, dout, 0.0)
            folded = fold_rows(
                dk=dk,
                dv=dv,
                q=q,
                dout=dout,
                k=k,
                v=v,
                lse_at=begin_at(lse_ptr, at, META.BLOCK_M, BLOCK_N),
                delta_at=begin_at(delta_ptr, at, META.BLOCK_M, BLOCK_N),
                scale_log2=scale_log2,
                at=at,
                mask=mask,
                META=META,
                MASKED=True,
            )
            dk, dv = folded.dk, folded.dv
            if META.ATOMIC:
                add_part(
                    base=sums_base,
                    desc=sums_desc,
                    row=row,
                    first=at,
                    part=folded.part,
                    DIM=META.DIM,
                    BLOCK_M=META.BLOCK_M,
                    BLOCK_D=BLOCK_D,
                    TMA=META.TMA_ADD,
                )
    store_rows(
        base=first_row(tensors.dk, batch, bounds.key_start, head_kv, strides.dk),
        first=start,
        count=keys,
        stride=strides.dk.row,
        tile=dk * scale,
        DIM=META.DIM,
        BLOCK=BLOCK_N,
        BLOCK_DIM=BLOCK_D,
    )
    store_rows(
        base=first_row(tensors.dv, batch, bounds.key_start, head_kv, strides.dv),
        first=start,
        count=keys,
        stride=strides.dv.row,
        tile=dv,
        DIM=META.DIM_V,
        BLOCK=BLOCK_N,
        BLOCK_DIM=BLOCK_V,
    )
