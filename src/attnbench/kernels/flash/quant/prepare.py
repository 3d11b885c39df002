"""Quantise the tensors of a call: one launch on their device, and one that sets counters to 0; nothing waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsIndex

import torch
from torch import Tensor

from attnbench.kernels.flash.problem import Problem, strides_of
from attnbench.kernels.flash.quant.arguments import QuantisedOperands
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
"Of a program, and of a thread at most: four programs of a multiprocessor load at a time."
LEAST_CHUNK, MOST_CHUNKS = 32768, 64
"Of the statistics: numbers of a program at least, and into how many stretches a head's rows are cut at most."
AHEAD_MIB = 16
"Heads whose K and V are this large together: by so many the statistics are ahead of what waits for them."


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
    counters: Tensor
    "int32 [4 + 2 B G], all 0 before the preparation"
    parts: Tensor
    "fp32 [2, B G, chunks, C]: sums of K and largest |V|, of a stretch of rows each"
    found: Tensor
    "fp32 [2, B G, C]: mean of K and the inverse of V's scale, of a head"

    @property
    def operands(self) -> QuantisedOperands:
        """What the attention reads."""
        return QuantisedOperands(self.q, self.k, self.v, self.q_scale, self.q_shift, self.k_scale, self.v_scale)

    @property
    def counter(self) -> Tensor:
        """int32 [1]: of the Hopper kernel's tile scheduler, 0 between launches."""
        return self.counters[:1]

    @property
    def arrived(self) -> Tensor:
        """int32 [2 B G]: stretches of K and of V whose statistics are there, and one more when they are together."""
        return self.counters[4:]


def columns_of(dim: int) -> int:
    """Columns of the quantised tensors."""
    return 64 if dim <= 64 else 128


def padded_rows(x: Tensor, batch: int, pad: int) -> int | RowCount:
    """Rows of a head when each sequence begins at a multiple of `pad`; packed, as many as can be needed."""
    if x.dim() == 4:
        return batch * (-(-x.shape[1] // pad) * pad)
    return (rows_in(x) + batch * pad) // pad * pad


def allocate(q: Tensor, k: Tensor, problem: Problem) -> Quantised:
    """Room for the quantised tensors of a problem."""
    (heads, dim), heads_kv, batch = q.shape[-2:], k.shape[-2], problem.batch
    columns, pairs = columns_of(dim), batch * heads_kv
    rows_q, rows_k = padded_rows(q, batch, Q_PAD.value), padded_rows(k, batch, TILE.value)
    chunks = chunks_of(problem.max_seqlen_k, columns)[0]

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
    """Into how many stretches a head's rows are cut for the statistics, and how many rows each has."""
    tiles = -(-seqlen // (MOST_CHUNKS * TILE.value))
    chunk = max(LEAST_CHUNK // columns, tiles * TILE.value)
    return max(1, -(-seqlen // chunk)), chunk


def inverse_of(by: int) -> int:
    """What `portable.prepare.divided` divides by: 2³¹ over it, rounded down."""
    return (2**31 - 1) // max(by, 1)


def launch_smooth(q: Tensor, k: Tensor, v: Tensor, made: Quantised, problem: Problem) -> None:
    """The statistics alone: of each channel the mean of K and the largest |V|."""
    _launch(q, k, v, made, problem, smooths=True, quantises=False)


def launch_quantise(q: Tensor, k: Tensor, v: Tensor, made: Quantised, problem: Problem) -> None:
    """All three tensors in 8 bits, of statistics that are there."""
    _launch(q, k, v, made, problem, smooths=False, quantises=True)


def launch_prepare(q: Tensor, k: Tensor, v: Tensor, made: Quantised, problem: Problem) -> None:
    """Both as one: K and V are read for the second time soon after the first."""
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
    repeats, stretches = heads // heads_kv, chunks if smooths else 0
    ahead = group_of(2 * problem.max_seqlen_k * dim * k.element_size(), AHEAD_MIB, pairs) if quantises else pairs
    share = 2 * tiles_k * (columns // WIDTH.value) + repeats * tiles_q if quantises else 0
    if ahead < pairs:
        share += 2 * stretches
    programs = ahead * 2 * stretches + (pairs * share if quantises else 0)
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
        stretches=stretches,
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
