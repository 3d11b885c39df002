"""Quantise the tensors of a call: two launches on their device, without a wait."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.kernels.flash.problem import Problem, strides_of
from attnbench.kernels.flash.quant.portable.prepare import Q_PAD, TILE, quantise, smooth

LOG2_E = 1.4426950408889634
WARPS = 4
"Of a program that quantises."
WIDTH, LEAST_CHUNK, MOST_CHUNKS = 32, 256, 8
"Of the statistics: columns of a program, its rows at least, and into how many stretches a head's rows are cut at most."


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantised:
    """Q, K and V in 8 bits with their scales; C columns, 64 or 128, are 0 past the dims.

    Sequences begin at a multiple of 64 queries and of 128 keys; a head's rows lie behind one another.
    """

    q: Tensor
    "int8 [H, rows, C]"
    k: Tensor
    "int8 [G, rows, C], the mean of each head's keys taken off"
    v: Tensor
    "e4m3 [G, rows / 128, C, 128], keys of a tile in the order of `portable.prepare.key_of`"
    q_scale: Tensor
    "fp32 [H, rows]: of a query, times the problem's scale, in powers of two"
    q_shift: Tensor
    "fp32 [H, rows]: a query's product with the mean of K, likewise"
    k_scale: Tensor
    "fp32 [G, rows / 128, 4]: of the keys n of a tile with the same (n % 8) // 2"
    v_scale: Tensor
    "fp32 [B, G, C]: of a channel"
    counter: Tensor
    "int32 [1]: of the Hopper kernel's tile scheduler, 0 between launches"
    parts: Tensor
    "fp32 [chunks, 2, B G, C]: sums of K and largest |V|, of a chunk of rows each"


def columns_of(dim: int) -> int:
    """Columns of the quantised tensors."""
    return 64 if dim <= 64 else 128


def padded_rows(x: Tensor, batch: int, pad: int) -> int:
    """Rows of a head when each sequence begins at a multiple of `pad`; packed, as many as can be needed."""
    if x.dim() == 4:
        return batch * (-(-x.shape[1] // pad) * pad)
    return (x.shape[0] + batch * pad) // pad * pad


def allocate(q: Tensor, k: Tensor, problem: Problem) -> Quantised:
    """Room for the quantised tensors of a problem."""
    (heads, dim), heads_kv, batch = q.shape[-2:], k.shape[-2], problem.batch
    columns, pairs = columns_of(dim), batch * heads_kv
    rows_q, rows_k = padded_rows(q, batch, Q_PAD.value), padded_rows(k, batch, TILE.value)
    chunks = chunks_of(problem.max_seqlen_k)[0]

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=q.device)

    return Quantised(
        q=empty(heads, rows_q, columns, dtype=torch.int8),
        k=empty(heads_kv, rows_k, columns, dtype=torch.int8),
        v=empty(heads_kv, rows_k // TILE.value, columns, TILE.value, dtype=torch.float8_e4m3fn),
        q_scale=empty(heads, rows_q),
        q_shift=empty(heads, rows_q),
        k_scale=empty(heads_kv, rows_k // TILE.value, 4),
        v_scale=empty(batch, heads_kv, columns),
        counter=empty(1, dtype=torch.int32),
        parts=empty(chunks, 2, pairs, columns),
    )


def chunks_of(seqlen: int) -> tuple[int, int]:
    """Into how many stretches a head's rows are cut for the statistics, and how many rows each has."""
    chunks = min(MOST_CHUNKS, -(-seqlen // LEAST_CHUNK))
    chunk = -(-seqlen // max(1, chunks))
    return -(-seqlen // max(1, chunk)), chunk


def launch_smooth(k: Tensor, v: Tensor, made: Quantised, problem: Problem) -> None:
    """The first launch: sums of K and largest |V| of each channel."""
    heads_kv, dim = k.shape[-2:]
    pairs = problem.batch * heads_kv
    chunks, chunk = chunks_of(problem.max_seqlen_k)
    if pairs * chunks == 0:
        return
    columns = columns_of(dim)
    smooth[(pairs, chunks, columns // WIDTH)](
        k,
        v,
        made.parts,
        problem.cu_seqlens_k,
        problem.max_seqlen_k,
        *strides_of(k),
        *strides_of(v),
        heads_kv,
        pairs,
        chunk,
        DIM=dim,
        COLUMNS=columns,
        PACKED=problem.packed,
        BLOCK=4096 // WIDTH,
        WIDTH=WIDTH,
        num_warps=4,
    )


def launch_quantise(q: Tensor, k: Tensor, v: Tensor, made: Quantised, problem: Problem) -> None:
    """The second launch: all three tensors in 8 bits."""
    (heads, dim), heads_kv, batch = q.shape[-2:], k.shape[-2], problem.batch
    # A head without keys has a tile too: it is what writes the scales of its channels.
    tiles_q, tiles_k = -(-problem.max_seqlen_q // TILE.value), max(1, -(-problem.max_seqlen_k // TILE.value))
    k_programs = batch * heads_kv * tiles_k
    programs = 2 * k_programs + batch * heads * tiles_q
    if programs == 0:
        return
    quantise[(programs,)](
        q,
        k,
        v,
        made.parts,
        made.q,
        made.k,
        made.v,
        made.q_scale,
        made.q_shift,
        made.k_scale,
        made.v_scale,
        made.counter,
        problem.cu_seqlens_q,
        problem.cu_seqlens_k,
        problem.max_seqlen_q,
        problem.max_seqlen_k,
        *strides_of(q),
        *strides_of(k),
        *strides_of(v),
        problem.scale * LOG2_E,
        heads,
        heads_kv,
        batch * heads_kv,
        made.parts.shape[0],
        made.q.shape[1],
        made.k.shape[1],
        tiles_q,
        tiles_k,
        k_programs,
        DIM=dim,
        COLUMNS=columns_of(dim),
        PACKED=problem.packed,
        CHUNKS=MOST_CHUNKS,
        num_warps=WARPS,
    )
