# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Means of the complete blocks of a history: k̄ and v̄ of block-sparse HSTU attention.

    k̄_c = 1/BS Σ_{j in block c} k_j        summed in fp32, rounded once to the precision of k

Means are stored as [heads, keys // BS, dims]: a sequence's first block is row (its first key) // BS, so that
sequences never overlap, whatever their lengths, and no offsets of blocks have to be computed.
Limited by memory bandwidth: K and V are read once.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.bsa.tiles import COUNTS
from attnbench.kernels.hstu.tiles import sequence
from attnbench.kernels.shared.rows import load_rows


@triton.jit
@no_type_check
def block_mean(
    base,
    mean,
    stride,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Mean of BLOCK_SIZE rows, ROWS at a time, so that a thread adds its own rows before any exchange between threads."""
    total = tl.zeros([ROWS, BLOCK_DIM], tl.float32)
    for start in range(0, BLOCK_SIZE, ROWS * AT_ONCE):
        for i in tl.static_range(AT_ONCE):
            total += load_rows(base, start + i * ROWS, BLOCK_SIZE, stride, DIM, ROWS, BLOCK_DIM, WHOLE=True).to(
                tl.float32
            )
    dims = tl.arange(0, BLOCK_DIM)
    tl.store(mean + dims, (tl.sum(total, 0) / BLOCK_SIZE).to(mean.dtype.element_ty), mask=dims < DIM)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_pool(
    k_ptr,
    v_ptr,
    means_k_ptr,
    means_v_ptr,
    sequences,
    strides,
    heads,
    blocks,
    mean_rows,
    ATTN_DIM: tl.constexpr,
    LINEAR_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """One program: one block of keys and of values."""
    unit = tl.program_id(0) // blocks
    block = tl.program_id(0) - unit * blocks
    number = unit // heads
    head = (unit - number * heads).to(tl.int64)
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=HAS_TARGETS, HAS_CACHE=HAS_CACHE
    )
    if block >= bounds.seen // BLOCK_SIZE:
        return
    key = bounds.key_start + block * BLOCK_SIZE
    mean = head * mean_rows + bounds.key_start // BLOCK_SIZE + block
    block_mean(
        base=k_ptr + key * strides.k.row + head * strides.k.head,
        mean=means_k_ptr + mean * ATTN_DIM,
        stride=strides.k.row,
        DIM=ATTN_DIM,
        BLOCK_DIM=BLOCK_D,
        BLOCK_SIZE=BLOCK_SIZE,
        ROWS=ROWS,
        AT_ONCE=AT_ONCE,
    )
    block_mean(
        base=v_ptr + key * strides.v.row + head * strides.v.head,
        mean=means_v_ptr + mean * LINEAR_DIM,
        stride=strides.v.row,
        DIM=LINEAR_DIM,
        BLOCK_DIM=BLOCK_V,
        BLOCK_SIZE=BLOCK_SIZE,
        ROWS=ROWS,
        AT_ONCE=AT_ONCE,
    )
