# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Gradients of block-sparse HSTU attention by keys: first of the means, then of keys and values.

With f the gates under which a query sees a key, A = SiLU(S) and dA = dO Vᵀ of one branch:

    dV = c (f A)ᵀ dO        dK = α c (f SiLU'(S) dA)ᵀ Q        dQ[t, s] = α c f SiLU'(S) dA K

    means   loops over all queries that see a tile of blocks; the gradient of a mean goes to each of its keys
    keys    loops over the queries near a block and those of its list; a listed query's part of dQ is written
            by query and slot, as in the forward

One program computes the sums of a block, in the order of its list: bitwise reproducible.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.bsa.tiles import (
    COMPRESSED,
    COUNTS,
    SELECTED,
    SLIDING,
    gate_of,
    gather_rows,
    scatter_rows,
    standing,
)
from attnbench.kernels.hstu.tiles import sequence, silu_and_slope
from attnbench.kernels.shared.rows import load_rows, store_rows


class RowsFolded(NamedTuple):
    """Gradients of a tile of keys after a tile of queries was added."""

    dk: Any
    "transposed, as dv: [dims, keys]"
    dv: Any
    slope: Any
    "dS of the two tiles"
    dgate: Any
    "for each query the sum of A ∘ dA"


@triton.jit
@no_type_check
def fold_rows(dk, dv, q, dout, k, v, factor, half_alpha, TANH: tl.constexpr):
    """Add a tile of queries to the gradients of the keys; returns `RowsFolded`."""
    value, twice = silu_and_slope(tl.dot(q, tl.trans(k), input_precision="ieee"), half_alpha, TANH)
    above = tl.dot(dout, tl.trans(v), input_precision="ieee")
    # Before the products below, so that their registers are not waited for in between.
    dgate = tl.sum(value * above, 1)
    dv = tl.dot(tl.trans(dout), (value * factor).to(q.dtype), dv, input_precision="ieee")
    slope = (twice * above * factor).to(q.dtype)
    dk = tl.dot(tl.trans(q), slope, dk, input_precision="ieee")
    return RowsFolded(dk=dk, dv=dv, slope=slope, dgate=dgate)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_grad_means(
    q_ptr,
    dout_ptr,
    gates_ptr,
    means_k_ptr,
    means_v_ptr,
    dmeans_k_ptr,
    dmeans_v_ptr,
    sequences,
    strides,
    heads,
    tiles,
    mean_rows,
    half_alpha,
    scale,
    META: tl.constexpr,
):
    """One program: a tile of blocks of one pair, looping over the queries that see them."""
    BLOCK_D: tl.constexpr = META.BLOCK_D
    BLOCK_V: tl.constexpr = META.BLOCK_V
    BLOCKS: tl.constexpr = META.BLOCKS
    unit = tl.program_id(0) // tiles
    number = unit // heads
    head = (unit - number * heads).to(tl.int64)
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=META.HAS_TARGETS, HAS_CACHE=META.HAS_CACHE
    )
    queries = bounds.keys - bounds.first_query
    whole = bounds.seen // META.BLOCK_SIZE
    start = (tl.program_id(0) - unit * tiles) * BLOCKS
    if start >= whole:
        return
    mean = head * mean_rows + bounds.key_start // META.BLOCK_SIZE
    k = load_rows(
        means_k_ptr + mean * META.ATTN_DIM, start, whole, META.ATTN_DIM, META.ATTN_DIM, BLOCKS, BLOCK_D, WHOLE=False
    )
    v = load_rows(
        means_v_ptr + mean * META.LINEAR_DIM,
        start,
        whole,
        META.LINEAR_DIM,
        META.LINEAR_DIM,
        BLOCKS,
        BLOCK_V,
        WHOLE=False,
    )
    last_key = (start + 1 + tl.arange(0, BLOCKS)) * META.BLOCK_SIZE - 1 - bounds.first_query
    dk = tl.zeros([BLOCKS, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCKS, BLOCK_V], tl.float32)
    q_base = q_ptr + bounds.query_start * strides.q.row + head * strides.q.head
    dout_base = dout_ptr + bounds.query_start * strides.dout.row + head * strides.dout.head
    begin = tl.maximum((start + 1) * META.BLOCK_SIZE - 1 - bounds.first_query, 0)
    for first in range(begin, queries, META.ROWS):
        rows = first + tl.arange(0, META.ROWS)
        q = load_rows(q_base, first, queries, strides.q.row, META.ATTN_DIM, META.ROWS, BLOCK_D, WHOLE=False)
        dout = load_rows(dout_base, first, queries, strides.dout.row, META.LINEAR_DIM, META.ROWS, BLOCK_V, WHOLE=False)
        # Means are the rows of the products, so that their weights stay in the registers in which they are computed.
        value, twice = silu_and_slope(tl.dot(k, tl.trans(q), input_precision="ieee"), half_alpha, META.TANH)
        slope = twice * tl.dot(v, tl.trans(dout), input_precision="ieee")
        if META.GATES > 0:
            gates = gate_of(gates_ptr, bounds.query_start + rows, heads, head, rows < queries, COMPRESSED, META.GATES)
            value *= gates[None, :]
            slope *= gates[None, :]
        # Missing queries and blocks are zeros: q and dO add nothing, and gradients of missing means are not read.
        sees = (last_key - first)[:, None] <= tl.arange(0, META.ROWS)[None, :]
        dv = tl.dot(tl.where(sees, value, 0.0).to(q.dtype), dout, dv, input_precision="ieee")
        dk = tl.dot(tl.where(sees, slope, 0.0).to(q.dtype), q, dk, input_precision="ieee")
    # Each key of a block gets 1 / BS of the gradient of its mean, which carries the factor BS.
    store_rows(
        base=dmeans_k_ptr + mean * META.ATTN_DIM,
        first=start,
        count=whole,
        stride=META.ATTN_DIM,
        tile=dk * (scale * half_alpha),
        DIM=META.ATTN_DIM,
        BLOCK=BLOCKS,
        BLOCK_DIM=BLOCK_D,
    )
    store_rows(
        base=dmeans_v_ptr + mean * META.LINEAR_DIM,
        first=start,
        count=whole,
        stride=META.LINEAR_DIM,
        tile=dv * scale,
        DIM=META.LINEAR_DIM,
        BLOCK=BLOCKS,
        BLOCK_DIM=BLOCK_V,
    )


@triton.jit
@no_type_check
def last_near_row(block, last_key, first_query, queries, seen, WINDOW: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """End of the queries that see a key of a nearby block, up to `last_key`: in their local block or window."""
    end = (block + 1) * BLOCK_SIZE
    if WINDOW > 0:
        end = tl.maximum(end, last_key + WINDOW)
    # Targets have the position after the history: they see the last block, and what the window covers from there.
    all_rows = block == (seen - 1) // BLOCK_SIZE
    if WINDOW > 0:
        all_rows = all_rows | (seen - last_key < WINDOW)
    return tl.where(all_rows, queries, tl.minimum(end - first_query, queries))


@triton.jit
@no_type_check
def key_factor(
    gates_ptr,
    packed,
    position,
    key,
    block,
    mask,
    from_list,
    heads,
    head,
    seen,
    KEYS: tl.constexpr,
    GATES: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Gates under which queries see KEYS keys of a block from `key`: listed queries all keys, nearby ones the visible keys.

    Missing queries and keys after the history are zeros and add nothing.
    """
    keys = tl.arange(0, KEYS)[None, :]
    past = keys <= (position - key)[:, None]
    of_local = gate_of(gates_ptr, packed, heads, head, mask, SELECTED, GATES)
    if WINDOW == 0:
        return tl.where(past, of_local[:, None], 0.0)
    of_window = gate_of(gates_ptr, packed, heads, head, mask & ~from_list, SLIDING, GATES)
    query = standing(position, first_query=0, seen=seen, BLOCK_SIZE=BLOCK_SIZE)
    of_local = tl.where(from_list | (query.local == block), of_local, 0.0)
    in_window = (query.stand - key)[:, None] - keys < WINDOW
    return tl.where(past, of_local[:, None] + tl.where(in_window, of_window[:, None], 0.0), 0.0)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_grad_keys(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    gates_ptr,
    dmeans_k_ptr,
    dmeans_v_ptr,
    entries_ptr,
    starts_ptr,
    partial_dq_ptr,
    partial_dgate_ptr,
    dk_ptr,
    dv_ptr,
    sequences,
    first_unit,
    tiles,
    strides,
    heads,
    entry_rows,
    count_rows,
    mean_rows,
    slot_rows,
    half_alpha,
    scale,
    META: tl.constexpr,
):
    """One program: one block of one pair, looping over the nearby queries and its list."""
    BLOCK_D: tl.constexpr = META.BLOCK_D
    BLOCK_V: tl.constexpr = META.BLOCK_V
    KEYS: tl.constexpr = META.KEYS
    place = tl.program_id(0) // tiles
    block = tl.program_id(0) - place * tiles
    unit = first_unit + place
    number = unit // heads
    head = (unit - number * heads).to(tl.int64)
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=META.HAS_TARGETS, HAS_CACHE=META.HAS_CACHE
    )
    queries = bounds.keys - bounds.first_query
    if block * META.BLOCK_SIZE >= bounds.seen:
        return
    k_base = k_ptr + bounds.key_start * strides.k.row + head * strides.k.head
    v_base = v_ptr + bounds.key_start * strides.v.row + head * strides.v.head
    q_base = q_ptr + bounds.query_start * strides.q.row + head * strides.q.head
    dout_base = dout_ptr + bounds.query_start * strides.dout.row + head * strides.dout.head
    complete = block < bounds.seen // META.BLOCK_SIZE
    listed = 0
    entries = entries_ptr
    partial_dq = partial_dq_ptr
    partial_dgate = partial_dgate_ptr
    if META.OTHERS > 0:
        list_head = head * 0 if META.SHARED else head
        starts = starts_ptr + list_head * count_rows + bounds.key_start // META.BLOCK_SIZE + number + block
        begin = tl.load(starts, mask=complete, other=0)
        listed = tl.load(starts + 1, mask=complete, other=0) - begin
        entries += list_head * entry_rows + bounds.query_start * META.OTHERS + begin
        partial_dq += place.to(tl.int64) * slot_rows * META.ATTN_DIM
        partial_dgate += place.to(tl.int64) * slot_rows
    # Keys that do not fit into registers are processed in parts, each over all queries.
    for part in range(META.BLOCK_SIZE // KEYS):
        key = block * META.BLOCK_SIZE + part * KEYS
        k = load_rows(k_base, key, bounds.seen, strides.k.row, META.ATTN_DIM, KEYS, BLOCK_D, WHOLE=False)
        v = load_rows(v_base, key, bounds.seen, strides.v.row, META.LINEAR_DIM, KEYS, BLOCK_V, WHOLE=False)
        dk = tl.zeros([BLOCK_D, KEYS], tl.float32)
        dv = tl.zeros([BLOCK_V, KEYS], tl.float32)
        near_first = tl.maximum(key - bounds.first_query, 0)
        near_end = last_near_row(
            block,
            tl.minimum(key + KEYS, bounds.seen) - 1,
            bounds.first_query,
            queries,
            bounds.seen,
            META.WINDOW,
            META.BLOCK_SIZE,
        )
        near = tl.maximum(near_end - near_first, 0)
        # The nearby queries, then those of the list, in the same tiles.
        for start in range(0, near + listed, META.ROWS):
            at = start + tl.arange(0, META.ROWS)
            mask = at < near + listed
            from_list = mask & (at >= near)
            entry = at
            rows = near_first + at
            if META.OTHERS > 0:
                entry = tl.load(entries + at - near, mask=from_list, other=0)
                rows = tl.where(from_list, entry // META.OTHERS, rows)
            q = gather_rows(q_base, rows, mask, strides.q.row, META.ATTN_DIM, BLOCK_D)
            dout = gather_rows(dout_base, rows, mask, strides.dout.row, META.LINEAR_DIM, BLOCK_V)
            factor = key_factor(
                gates_ptr=gates_ptr,
                packed=bounds.query_start + rows,
                position=bounds.first_query + rows,
                key=key,
                block=block,
                mask=mask,
                from_list=from_list,
                heads=heads,
                head=head,
                seen=bounds.seen,
                KEYS=KEYS,
                GATES=META.GATES,
                WINDOW=META.WINDOW,
                BLOCK_SIZE=META.BLOCK_SIZE,
            )
            folded = fold_rows(
                dk=dk, dv=dv, q=q, dout=dout, k=k, v=v, factor=factor, half_alpha=half_alpha, TANH=META.TANH
            )
            dk, dv = folded.dk, folded.dv
            if META.OTHERS > 0:
                dq = tl.dot(folded.slope, k, input_precision="ieee") * (scale * half_alpha)
                dgate = folded.dgate * scale
                if KEYS < META.BLOCK_SIZE:
                    before = from_list & (tl.zeros_like(at) + part > 0)
                    dq += gather_rows(partial_dq, entry, before, META.ATTN_DIM, META.ATTN_DIM, BLOCK_D).to(tl.float32)
                    if META.GATES > 0:
                        dgate += tl.load(partial_dgate + entry, mask=before, other=0.0)
                scatter_rows(partial_dq, entry, from_list, META.ATTN_DIM, dq, META.ATTN_DIM, BLOCK_D)
                if META.GATES > 0:
                    tl.store(partial_dgate + entry, dgate, mask=from_list)
        # The next part adds to what this part wrote.
        if KEYS < META.BLOCK_SIZE:
            tl.debug_barrier()
        mean = head * mean_rows + bounds.key_start // META.BLOCK_SIZE + block
        d = tl.arange(0, BLOCK_D)
        mean_k = tl.load(
            dmeans_k_ptr + mean * META.ATTN_DIM + d, mask=d < tl.where(complete, META.ATTN_DIM, 0), other=0.0
        )
        d = tl.arange(0, BLOCK_V)
        mean_v = tl.load(
            dmeans_v_ptr + mean * META.LINEAR_DIM + d, mask=d < tl.where(complete, META.LINEAR_DIM, 0), other=0.0
        )
        key_row = heads * META.ATTN_DIM
        store_rows(
            base=dk_ptr + bounds.key_start * key_row + head * META.ATTN_DIM,
            first=key,
            count=bounds.seen,
            stride=key_row,
            tile=tl.trans(dk * (scale * half_alpha) + mean_k[:, None]),
            DIM=META.ATTN_DIM,
            BLOCK=KEYS,
            BLOCK_DIM=BLOCK_D,
        )
        key_row = heads * META.LINEAR_DIM
        store_rows(
            base=dv_ptr + bounds.key_start * key_row + head * META.LINEAR_DIM,
            first=key,
            count=bounds.seen,
            stride=key_row,
            tile=tl.trans(dv * scale + mean_v[:, None]),
            DIM=META.LINEAR_DIM,
            BLOCK=KEYS,
            BLOCK_DIM=BLOCK_V,
        )
