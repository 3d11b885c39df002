"""Quantise the tensors of a call: one launch that zeroes counters and one that quantises, without synchronizing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsIndex

import torch
from torch import Tensor

from attnbench.kernels.flash.problem import Problem, strides_of
from attnbench.kernels.flash.quant.arguments import QuantisedOperands
from attnbench.kernels.flash.quant.portable.channels import SAMPLE, THINNEST
from attnbench.kernels.flash.quant.portable.prepare import (
    NUMBERS,
    Q_PAD,
    TILE,
    WIDTH,
    Inputs,
    PrepareMeta,
    Statistics,
    quantise,
)
from attnbench.kernels.shared import kept
from attnbench.kernels.shared.counts import RowCount
from attnbench.kernels.shared.kept import clear, launch, rows_in
from attnbench.kernels.shared.tiling import group_of

LOG2_E = 1.4426950408889634
WARPS, REGISTERS = 8, 64
"Warps of a program and most registers of a thread, so that four programs fit on an SM and load at the same time."
LEAST_CHUNK, MOST_CHUNKS = 32768, 64
"For the statistics: fewest elements of a program, and most stretches into which a head's rows are divided."
AHEAD_MIB = 16
"The statistics run ahead of the quantisation that waits for them by as many heads as have this much K and V."


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantised:
    """Q, K and V in 8 bits with their scales; C columns, 64 or 128, zero beyond the dims.

    Each sequence begins at a multiple of 64 queries and of 128 keys; the rows of a head are contiguous.
    """

    q: Tensor
    "int8 [H, rows, C]"
    k: Tensor
    "int8 [G, rows, C], with the mean of a sample of each head's keys subtracted"
    v: Tensor
    "e4m3 [G, rows / 128, C, 128], the keys of a tile in the order of `portable.prepare.key_of`"
    q_scale: Tensor
    "fp32 [H, rows]: scale of each query times the problem's scale, for exponentials in base 2"
    q_shift: Tensor
    "fp32 [H, rows]: each query's product with that mean, likewise scaled for base 2"
    k_scale: Tensor
    "fp32 [G, rows / 128, 4]: scale of the keys n of a tile with the same (n % 8) // 2"
    v_scale: Tensor
    "fp32 [B, G, C]: scale of each channel"
    counters: Tensor
    "int32 [4 + 2 B G] counters, all 0 before the preparation"
    parts: Tensor
    "fp32 [2, B G, chunks, C]: sums of K and largest |V| of each stretch of rows; K has fewer stretches"
    found: Tensor
    "fp32 [2, B G, C]: mean of K's sample and inverse of V's scale, of each head"

    @property
    def operands(self) -> QuantisedOperands:
        """Pointers that the attention reads."""
        return QuantisedOperands(self.q, self.k, self.v, self.q_scale, self.q_shift, self.k_scale, self.v_scale)

    @property
    def counter(self) -> Tensor:
        """int32 [1]: counter of the Hopper kernel's tile scheduler, 0 between launches."""
        return self.counters[:1]

    @property
    def arrived(self) -> Tensor:
        """int32 [2 B G]: stretches of K and of V whose statistics are stored, plus one when they have been combined."""
        return self.counters[4:]


def columns_of(dim: int) -> int:
    """Columns of the quantised tensors."""
    return 64 if dim <= 64 else 128


def padded_rows(x: Tensor, batch: int, pad: int) -> int | RowCount:
    """Rows of a head when each sequence begins at a multiple of `pad`; packed: an upper bound."""
    if x.dim() == 4:
        return batch * (-(-x.shape[1] // pad) * pad)
    return (rows_in(x) + batch * pad) // pad * pad


def allocate(q: Tensor, k: Tensor, problem: Problem) -> Quantised:
    """Allocate the quantised tensors of a problem."""
    (heads, dim), heads_kv, batch = q.shape[-2:], k.shape[-2], problem.batch
    columns, pairs = columns_of(dim), batch * heads_kv
    rows_q, rows_k = padded_rows(q, batch, Q_PAD.value), padded_rows(k, batch, TILE.value)
    chunks, _ = chunks_of(problem.max_seqlen_k, columns)

    def empty(*shape: SupportsIndex, dtype: torch.dtype = torch.float32) -> Tensor:
        return kept.empty(shape, q, dtype)

    return Quantised(
        q=empty(heads, rows_q, columns, dtype=torch.int8),
        k=empty(heads_kv, rows_k, columns, dtype=torch.int8),
        v=empty(heads_kv, rows_k // TILE.value, columns, TILE.value, dtype=torch.float8_e4m3fn),
        q_scale=empty(heads, rows_q),
        q_shift=empty(heads, rows_q),
        k_scale=empty(heads_kv, rows_k // TILE.value, 4),
        v_scale=empty(batch, heads_kv, columns),
        counters=empty(4 + 2 * pairs, dtype=torch.int32),
        parts=empty(2, pairs, chunks, columns),
        found=empty(2, pairs, columns),
    )


def chunks_of(seqlen: int, columns: int) -> tuple[int, int]:
    """Into how many stretches a head's rows are divided for the statistics, and how many rows each has."""
    tiles = -(-seqlen // (MOST_CHUNKS * TILE.value))
    chunk = max(LEAST_CHUNK // columns, tiles * TILE.value)
    return max(1, -(-seqlen // chunk)), chunk


def sample_of(seqlen: int, *, packed: bool) -> int:
    """Rows of the sample of a sequence with this many keys; packed: most of a sequence with up to as many."""
    if packed:  # those of the longest, or all of one that is just not sampled
        return max(min(seqlen, 2 * SAMPLE.value - 1), seqlen >> THINNEST.value)
    return seqlen >> min(THINNEST.value, max(1, seqlen // SAMPLE.value).bit_length() - 1)


def inverse_of(by: int) -> int:
    """The reciprocal that `portable.prepare.divided` multiplies by: 2³¹ over the divisor, rounded down."""
    return (2**31 - 1) // max(by, 1)


def launch_smooth(q: Tensor, k: Tensor, v: Tensor, made: Quantised, problem: Problem) -> None:
    """Only the statistics: mean of K's sample and largest |V| of each channel."""
    _launch(q, k, v, made, problem, smooths=True, quantises=False)


def launch_quantise(q: Tensor, k: Tensor, v: Tensor, made: Quantised, problem: Problem) -> None:
    """Quantise all three tensors, from statistics that were computed before."""
    _launch(q, k, v, made, problem, smooths=False, quantises=True)


def launch_prepare(q: Tensor, k: Tensor, v: Tensor, made: Quantised, problem: Problem) -> None:
    """Both in one launch, so that V is read the second time soon after the first."""
    _launch(q, k, v, made, problem, smooths=True, quantises=True)


def _launch(
    q: Tensor, k: Tensor, v: Tensor, made: Quantised, problem: Problem, *, smooths: bool, quantises: bool
) -> None:
    (heads, dim), heads_kv, batch = q.shape[-2:], k.shape[-2], problem.batch
    columns, pairs = columns_of(dim), batch * heads_kv
    if pairs == 0:
        return
    chunks, chunk = chunks_of(problem.max_seqlen_k, columns)
    tiles_q, tiles_k = -(-problem.max_seqlen_q * columns // NUMBERS.value), -(-problem.max_seqlen_k // TILE.value)
    repeats, stretches_k, stretches_v = heads // heads_kv, 0, 0
    if smooths:
        sample = sample_of(problem.max_seqlen_k, packed=problem.packed)
        stretches_k, stretches_v = max(1, -(-sample // chunk)), chunks
    ahead = group_of(2 * problem.max_seqlen_k * dim * k.element_size(), AHEAD_MIB, pairs) if quantises else pairs
    share = 2 * tiles_k * (columns // WIDTH.value) + repeats * tiles_q if quantises else 0
    if ahead < pairs:
        share += stretches_k + stretches_v
    programs = ahead * (stretches_k + stretches_v) + (pairs * share if quantises else 0)
    if smooths:
        clear(made.counters)
    if programs == 0:
        return
    inputs = Inputs(q, k, v)
    launch(
        quantise,
        (programs,),
        inputs=inputs,
        statistics=Statistics(made.parts, made.found, made.arrived),
        made=made.operands,
        cu_q_ptr=problem.cu_seqlens_q,
        cu_k_ptr=problem.cu_seqlens_k,
        seqlen_q=problem.max_seqlen_q,
        seqlen_k=problem.max_seqlen_k,
        strides=Inputs(*map(strides_of, inputs)),
        scale=problem.scale * LOG2_E,
        rows_q=rows_in(made.q, 1),
        rows_k=rows_in(made.k, 1),
        pairs=pairs,
        chunk=chunk,
        stretches_k=stretches_k,
        stretches_v=stretches_v,
        ahead=ahead,
        heads_kv=heads_kv,
        by_heads_kv=inverse_of(heads_kv),
        repeats=repeats,
        by_repeats=inverse_of(repeats),
        share=share,
        by_share=inverse_of(share),
        META=PrepareMeta(DIM=dim, COLUMNS=columns, PACKED=problem.packed, CHUNKS=MOST_CHUNKS),
        num_warps=WARPS,
        maxnreg=REGISTERS,
    )
