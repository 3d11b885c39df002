# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Compressed, local and sliding branches of block-sparse HSTU attention, and the blocks each query selects.

    out_t = g BS c Σ_b SiLU(α q·k̄_b) v̄_b        over the complete blocks that end at or before t
          + c Σ_j (g' + g") SiLU(α q·k_j) v_j    over the nearby keys: the local block's up to t under the gate g' of
                                                 the selected branch, the last w under g" of the sliding one
    blocks_t = the local block, and of those before it the S - 1 with the largest α q·k̄_b

One pass over the means computes the compressed branch and the ranking, which share their scores.  With one selection for
all heads the scores are summed over the heads, by a kernel of its own.  With `pairs` an odd history row (an action) is
ranked by the query before it (its item), if that is among the queries.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.bsa.tiles import (
    COMPRESSED,
    COUNTS,
    SELECTED,
    SLIDING,
    complete_seen,
    gate_of,
    gather_rows,
    near_begin,
    near_masks,
    near_weights,
    standing,
)
from attnbench.kernels.hstu.bsa.topk import empty_list, fold_tile, keys_of, least, store_blocks
from attnbench.kernels.hstu.tiles import sequence, silu
from attnbench.kernels.shared.rows import load_rows, store_rows


@triton.jit
@no_type_check
def ranking_rows(rows, position, seen):
    """The query whose scores rank for each row: for an action that of its item, if it is among the queries."""
    action = (position % 2 == 1) & (position < seen) & (rows > 0)
    return tl.where(action, rows - 1, rows)


@triton.jit
@no_type_check
def rank_tile(
    best, scores, start, local, ROWS: tl.constexpr, BLOCKS: tl.constexpr, BITS: tl.constexpr, MASKED: tl.constexpr
):
    """Merge the scores [ROWS, BLOCKS] of blocks before the local one into the lists."""
    keys = keys_of(scores, start, BLOCKS, BITS)
    if MASKED:
        keys = tl.where((start + tl.arange(0, BLOCKS))[None, :] < local[:, None], keys, least(BITS))
    return fold_tile(best, keys, ROWS, BLOCKS, BITS)


@triton.jit
@no_type_check
def coarse_tile(
    acc,
    best,
    q,
    ranker,
    means_k,
    means_v,
    start,
    whole,
    visible,
    local,
    half_alpha,
    ATTN_DIM: tl.constexpr,
    LINEAR_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
    PAIRS: tl.constexpr,
    TANH: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Weigh and rank the blocks from `start`."""
    means = load_rows(
        base=means_k,
        first=start,
        count=whole,
        stride=ATTN_DIM,
        DIM=ATTN_DIM,
        BLOCK=BLOCKS,
        BLOCK_DIM=BLOCK_D,
        WHOLE=not MASKED,
    )
    scores = tl.dot(q, tl.trans(means), input_precision="ieee")
    weights = silu(scores, half_alpha, TANH)
    if MASKED:
        weights = tl.where((start + tl.arange(0, BLOCKS))[None, :] < visible[:, None], weights, 0.0)
    means_of_v = load_rows(
        base=means_v,
        first=start,
        count=whole,
        stride=LINEAR_DIM,
        DIM=LINEAR_DIM,
        BLOCK=BLOCKS,
        BLOCK_DIM=BLOCK_V,
        WHOLE=not MASKED,
    )
    acc = tl.dot(weights.to(q.dtype), means_of_v, acc, input_precision="ieee")
    if len(best) > 0:
        if PAIRS:
            scores = tl.dot(ranker, tl.trans(means), input_precision="ieee")
        best = rank_tile(
            best=best, scores=scores, start=start, local=local, ROWS=ROWS, BLOCKS=BLOCKS, BITS=BITS, MASKED=MASKED
        )
    return acc, best


@triton.jit
@no_type_check
def near_sum(
    acc,
    q,
    k_base,
    v_base,
    start,
    queries,
    first_query,
    seen,
    of_local,
    of_window,
    k_row,
    v_row,
    half_alpha,
    ATTN_DIM: tl.constexpr,
    LINEAR_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    TANH: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
):
    """Add the keys that the local and the sliding branch see, for the queries from `start`."""
    rows = start + tl.arange(0, ROWS)
    query = standing(rows, first_query, seen, BLOCK_SIZE)
    end = tl.minimum(first_query + tl.minimum(start + ROWS, queries), seen)
    for key in range(near_begin(first_query + start, seen, WINDOW, BLOCK_SIZE), end, KEYS):
        k = load_rows(k_base, key, end, k_row, ATTN_DIM, KEYS, BLOCK_D, WHOLE=False)
        in_local, in_window = near_masks(
            (key + tl.arange(0, KEYS))[None, :],
            query.position[:, None],
            query.stand[:, None],
            query.local[:, None],
            seen,
            WINDOW,
            BLOCK_SIZE,
        )
        weights = silu(tl.dot(q, tl.trans(k), input_precision="ieee"), half_alpha, TANH)
        weights = near_weights(weights, in_local, in_window, of_local[:, None], of_window[:, None], WINDOW)
        v = load_rows(v_base, key, end, v_row, LINEAR_DIM, KEYS, BLOCK_V, WHOLE=False)
        acc = tl.dot(weights.to(q.dtype), v, acc, input_precision="ieee")
    if HAS_TARGETS:
        # A target is a key only for itself, in the selected branch and in the sliding one.
        target = (rows < queries) & (query.position >= seen)
        own = gather_rows(k_base, query.position, target, k_row, ATTN_DIM, BLOCK_D)
        weight = silu(tl.sum(q.to(tl.float32) * own.to(tl.float32), 1), half_alpha, TANH)
        weight *= (of_local + of_window) if WINDOW > 0 else of_local
        own = gather_rows(v_base, query.position, target, v_row, LINEAR_DIM, BLOCK_V)
        acc += weight[:, None] * own.to(tl.float32)
    return acc


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_select(
    q_ptr,
    k_ptr,
    v_ptr,
    means_k_ptr,
    means_v_ptr,
    gates_ptr,
    out_ptr,
    blocks_ptr,
    sequences,
    strides,
    heads,
    tiles,
    mean_rows,
    half_alpha,
    scale,
    META: tl.constexpr,
):
    """One program: one tile of queries of one pair, the longest rows first."""
    BLOCK_V: tl.constexpr = META.BLOCK_V
    ROWS: tl.constexpr = META.ROWS
    # The query tile of this program: of a (sequence, head) pair the longest rows first.
    unit = tl.program_id(0) // tiles
    tile = tiles - 1 - (tl.program_id(0) - unit * tiles)
    number = unit // heads
    head = (unit - number * heads).to(tl.int64)
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=META.HAS_TARGETS, HAS_CACHE=META.HAS_CACHE
    )
    queries = bounds.keys - bounds.first_query
    start = tile * ROWS
    if start >= queries:
        return
    rows = start + tl.arange(0, ROWS)
    query = standing(rows, bounds.first_query, bounds.seen, META.BLOCK_SIZE)
    visible = complete_seen(query.stand, bounds.seen, META.BLOCK_SIZE)
    q_base = q_ptr + bounds.query_start * strides.q.row + head * strides.q.head
    q = load_rows(q_base, start, queries, strides.q.row, META.ATTN_DIM, ROWS, META.BLOCK_D, WHOLE=False)
    ranker = q
    if META.PAIRS and not META.SHARED:
        ranker = gather_rows(
            q_base,
            ranking_rows(rows, query.position, bounds.seen),
            rows < queries,
            strides.q.row,
            META.ATTN_DIM,
            META.BLOCK_D,
        )
    whole = bounds.seen // META.BLOCK_SIZE
    means_k = means_k_ptr + (head * mean_rows + bounds.key_start // META.BLOCK_SIZE) * META.ATTN_DIM
    means_v = means_v_ptr + (head * mean_rows + bounds.key_start // META.BLOCK_SIZE) * META.LINEAR_DIM
    acc = tl.zeros([ROWS, BLOCK_V], tl.float32)
    best = empty_list(rows, 0 if META.SHARED else META.COUNTS - 1, META.BITS)

    # Blocks before the local one of the first row are seen by all rows, and are candidates for all.
    of_first = standing(start, bounds.first_query, bounds.seen, META.BLOCK_SIZE).local
    last = standing(tl.minimum(start + ROWS, queries) - 1, bounds.first_query, bounds.seen, META.BLOCK_SIZE).stand
    split = of_first // META.BLOCKS * META.BLOCKS
    end = complete_seen(last, bounds.seen, META.BLOCK_SIZE)
    for block in range(0, split, META.BLOCKS):
        acc, best = coarse_tile(
            acc=acc,
            best=best,
            q=q,
            ranker=ranker,
            means_k=means_k,
            means_v=means_v,
            start=block,
            whole=whole,
            visible=visible,
            local=query.local,
            half_alpha=half_alpha,
            ATTN_DIM=META.ATTN_DIM,
            LINEAR_DIM=META.LINEAR_DIM,
            BLOCK_D=META.BLOCK_D,
            BLOCK_V=BLOCK_V,
            ROWS=ROWS,
            BLOCKS=META.BLOCKS,
            BITS=META.BITS,
            PAIRS=META.PAIRS,
            TANH=META.TANH,
            MASKED=False,
        )
    for block in range(split, end, META.BLOCKS):
        acc, best = coarse_tile(
            acc=acc,
            best=best,
            q=q,
            ranker=ranker,
            means_k=means_k,
            means_v=means_v,
            start=block,
            whole=whole,
            visible=visible,
            local=query.local,
            half_alpha=half_alpha,
            ATTN_DIM=META.ATTN_DIM,
            LINEAR_DIM=META.LINEAR_DIM,
            BLOCK_D=META.BLOCK_D,
            BLOCK_V=BLOCK_V,
            ROWS=ROWS,
            BLOCKS=META.BLOCKS,
            BITS=META.BITS,
            PAIRS=META.PAIRS,
            TANH=META.TANH,
            MASKED=True,
        )

    if not META.SHARED:
        store_blocks(
            blocks_ptr=blocks_ptr + (bounds.query_start * heads + head) * META.COUNTS,
            best=best,
            rows=rows,
            queries=queries,
            first_query=bounds.first_query,
            seen=bounds.seen,
            COUNTS=META.COUNTS,
            BLOCK_SIZE=META.BLOCK_SIZE,
            BITS=META.BITS,
            stride=heads * META.COUNTS,
        )

    gate = gate_of(gates_ptr, bounds.query_start + rows, heads, head, rows < queries, COMPRESSED, META.GATES)
    of_local = gate_of(gates_ptr, bounds.query_start + rows, heads, head, rows < queries, SELECTED, META.GATES)
    of_window = of_local
    if META.WINDOW > 0:
        of_window = gate_of(gates_ptr, bounds.query_start + rows, heads, head, rows < queries, SLIDING, META.GATES)
    acc = near_sum(
        acc=acc * (gate * META.BLOCK_SIZE)[:, None],
        q=q,
        k_base=k_ptr + bounds.key_start * strides.k.row + head * strides.k.head,
        v_base=v_ptr + bounds.key_start * strides.v.row + head * strides.v.head,
        start=start,
        queries=queries,
        first_query=bounds.first_query,
        seen=bounds.seen,
        of_local=of_local,
        of_window=of_window,
        k_row=strides.k.row,
        v_row=strides.v.row,
        half_alpha=half_alpha,
        ATTN_DIM=META.ATTN_DIM,
        LINEAR_DIM=META.LINEAR_DIM,
        BLOCK_D=META.BLOCK_D,
        BLOCK_V=BLOCK_V,
        BLOCK_SIZE=META.BLOCK_SIZE,
        WINDOW=META.WINDOW,
        ROWS=ROWS,
        KEYS=META.KEYS,
        TANH=META.TANH,
        HAS_TARGETS=META.HAS_TARGETS,
    )
    out_row = heads * META.LINEAR_DIM
    store_rows(
        base=out_ptr + bounds.query_start * out_row + head * META.LINEAR_DIM,
        first=start,
        count=queries,
        stride=out_row,
        tile=acc * scale,
        DIM=META.LINEAR_DIM,
        BLOCK=ROWS,
        BLOCK_DIM=BLOCK_V,
    )


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_select_shared(
    q_ptr,
    means_k_ptr,
    blocks_ptr,
    sequences,
    q_strides,
    heads,
    tiles,
    mean_rows,
    ATTN_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    COUNTS: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BITS: tl.constexpr,
):
    """One program: one tile of queries of one sequence, looping over all heads for each tile of blocks."""
    number = tl.program_id(0) // tiles
    tile = tiles - 1 - (tl.program_id(0) - number * tiles)
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=HAS_TARGETS, HAS_CACHE=HAS_CACHE
    )
    queries = bounds.keys - bounds.first_query
    start = tile * ROWS
    if start >= queries:
        return
    rows = start + tl.arange(0, ROWS)
    query = standing(rows, bounds.first_query, bounds.seen, BLOCK_SIZE)
    rankers = rows
    if PAIRS:
        rankers = ranking_rows(rows, query.position, bounds.seen)
    best = empty_list(rows, COUNTS - 1, BITS)
    if COUNTS > 1:
        end = standing(tl.minimum(start + ROWS, queries) - 1, bounds.first_query, bounds.seen, BLOCK_SIZE).local
        for block in range(0, end, BLOCKS):
            scores = tl.zeros([ROWS, BLOCKS], tl.float32)
            for head in range(heads):
                wide = tl.cast(head, tl.int64)
                q = gather_rows(
                    q_ptr + bounds.query_start * q_strides.row + wide * q_strides.head,
                    rankers,
                    rows < queries,
                    q_strides.row,
                    ATTN_DIM,
                    BLOCK_D,
                )
                means = load_rows(
                    means_k_ptr + (wide * mean_rows + bounds.key_start // BLOCK_SIZE) * ATTN_DIM,
                    block,
                    end,
                    ATTN_DIM,
                    ATTN_DIM,
                    BLOCKS,
                    BLOCK_D,
                    WHOLE=False,
                )
                scores = tl.dot(q, tl.trans(means), scores, input_precision="ieee")
            best = rank_tile(best, scores, block, query.local, ROWS, BLOCKS, BITS, MASKED=True)
    store_blocks(
        blocks_ptr=blocks_ptr + bounds.query_start * COUNTS,
        best=best,
        rows=rows,
        queries=queries,
        first_query=bounds.first_query,
        seen=bounds.seen,
        COUNTS=COUNTS,
        BLOCK_SIZE=BLOCK_SIZE,
        BITS=BITS,
        stride=COUNTS,
    )
