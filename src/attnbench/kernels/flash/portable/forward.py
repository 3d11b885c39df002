# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Softmax attention forward: a program computes a tile of queries, looping over the tiles of keys they see.

    for each tile of keys:  S = c Q Kᵀ,  m' = max(m, rowmax S),  P = exp(S - m'),  a = exp(m - m')
                            l = a l + rowsum P,  O = a O + P V,  m = m'
    O / l,  lse = m + ln l          (Dao 2023, arXiv:2307.08691, algorithm 1; exponentials in base 2, c folded in)

A row that sees no key has O = 0 and lse = -∞.  The order `ahead` issues QKᵀ of a tile before PV of the previous tile, so
that the softmax overlaps with PV (Shah et al. 2024, arXiv:2407.08608, section 3.2); on sm_90 it gives wrong results
(`flash.config.space.ahead_fault`).
Masked tiles come after the others, or in the same loop behind a uniform branch.  Programs are ordered so that the last
rows, which see most keys under a causal mask, come first.  They are numbered in sections of (sequence, head) pairs whose
keys and values fit into the L2 together; heads that share keys are neighbours.  No workspace.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.tiles import (
    Folded,
    Rows,
    first_row,
    keys_of_rows,
    load_tile,
    masked_tile,
    sees,
    sequence,
    tiles_of,
)
from attnbench.kernels.shared.arguments import Strides
from attnbench.kernels.shared.rows import load_rows, section_of, store_rows

LOG2_E = 1.4426950408889634
LN_2 = tl.constexpr(0.6931471805599453)
COUNTS = ("lse_batch", "lse_head", "left", "right", "heads", "repeats", "pairs", "tiles", "group")
"Arguments whose values the code is not specialized for; lengths only by whether 16 divides them."


@triton.jit
@no_type_check
def exp2(x, MIX: tl.constexpr):
    """2ˣ for x <= 0 by the special function unit; with MIX every fourth element by a polynomial, to relieve that unit.

    The polynomial has degree 3 on the fraction in [0, 1); its error is at most 9e-5, a fifth of a rounding step of fp16.
    The integer part is added to the exponent bits; x up to -127 gives 0.
    """
    if MIX:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 x, whole, part, y;
            ex2.approx.ftz.f32 $0, $4;
            ex2.approx.ftz.f32 $1, $5;
            ex2.approx.ftz.f32 $2, $6;
            max.NaN.ftz.f32 x, $7, 0fC2FE0000;
            add.rm.ftz.f32 whole, x, 0f4B400000;
            sub.rn.ftz.f32 part, whole, 0f4B400000;
            sub.rn.ftz.f32 part, x, part;
            fma.rn.ftz.f32 y, part, 0f3D9DD568, 0f3E691BB9;
            fma.rn.ftz.f32 y, y, part, 0f3F31F32D;
            fma.rn.ftz.f32 y, y, part, 0f3F800000;
            shl.b32 whole, whole, 23;
            add.s32 $3, whole, y;
            }
            """,
            "=r,=r,=r,=r,r,r,r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=4,
        )
    return tl.math.exp2(x)


@triton.jit
@no_type_check
def fold(scores, row_max, row_sum, scale, MIX: tl.constexpr):
    """Merge a tile's scores into the running softmax, as `Folded`."""
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    # A row that has seen no key yet has no maximum to subtract.
    pivot = tl.where(new_max == float("-inf"), 0.0, new_max * scale)
    weights = exp2(scores * scale - pivot[:, None], MIX)
    factor = tl.math.exp2(row_max * scale - pivot)
    row_sum = row_sum * factor + tl.sum(weights, 1)
    return Folded(weights=weights, factor=factor, row_max=new_max, sums=row_sum)


class Mask(NamedTuple):
    """Mask of a tile of rows against the keys of a sequence; every row sees all keys of the key tiles [whole, split)."""

    rows: Any
    "row numbers"
    whole: Any
    split: Any
    keys: Any
    "of the sequence"
    shift: Any
    left: Any
    right: Any


@triton.jit
@no_type_check
def hide(scores, at, tile, mask, META: tl.constexpr, MASKED: tl.constexpr):
    """Scores of a tile with hidden ones set to -∞.

    With MASKED for every tile; with META.FUSED for tiles that some row does not see whole.
    """
    rows = mask.rows[:, None]
    if MASKED:
        # Relative to the tile's first key: the sum of its position and each column would take a register per column.
        see = sees(
            rows=rows,
            columns=tl.arange(0, META.BLOCK_N)[None, :],
            keys=mask.keys - at,
            shift=mask.shift - at,
            left=mask.left,
            right=mask.right,
            HAS_LEFT=META.HAS_LEFT,
            HAS_RIGHT=META.HAS_RIGHT,
        )
        scores = tl.where(see, scores, float("-inf"))
    elif META.FUSED:
        partial = tile >= mask.split
        if META.HAS_LEFT:
            partial |= tile < mask.whole
        if partial:
            see = sees(
                rows=rows,
                columns=tl.arange(0, META.BLOCK_N)[None, :],
                keys=mask.keys - at,
                shift=mask.shift - at,
                left=mask.left,
                right=mask.right,
                HAS_LEFT=META.HAS_LEFT,
                HAS_RIGHT=META.HAS_RIGHT,
            )
            scores = tl.where(see, scores, float("-inf"))
    return scores


class Arguments(NamedTuple):
    """The arguments of `flash_forward` except META."""

    tensors: Any
    lse_ptr: Any
    k_desc: Any
    v_desc: Any
    cu_q_ptr: Any
    cu_k_ptr: Any
    seqlen_q: Any
    seqlen_k: Any
    strides: Any
    lse_batch: Any
    lse_head: Any
    scale: Any
    left: Any
    right: Any
    heads: Any
    repeats: Any
    pairs: Any
    tiles: Any
    group: Any


@triton.jit
@no_type_check
def attend_rows(program, arguments, META: tl.constexpr):
    """Output and lse of a tile of queries."""
    BLOCK_M: tl.constexpr = META.BLOCK_M
    BLOCK_V: tl.constexpr = META.BLOCK_V
    PRECISION: tl.constexpr = META.PRECISION
    # Only the descriptor of a dense tensor ends at the end of a sequence.
    TMA_ENDS: tl.constexpr = META.TMA and not META.PACKED
    BITS: tl.constexpr = tl.int16 if arguments.tensors.q.dtype.element_ty.primitive_bitwidth == 16 else tl.int32
    tile, pair = section_of(program, arguments.tiles, arguments.pairs, arguments.group)
    number = pair // arguments.heads
    head = pair - number * arguments.heads
    head_kv = head // arguments.repeats
    bounds = sequence(
        arguments.cu_q_ptr, arguments.cu_k_ptr, arguments.seqlen_q, arguments.seqlen_k, number, META.PACKED
    )
    batch, queries, keys = bounds.batch, bounds.queries, bounds.keys
    query_start, key_start = bounds.query_start, bounds.key_start
    first = (arguments.tiles - 1 - tile) * BLOCK_M
    if first < queries:
        q_base = first_row(arguments.tensors.q, batch, query_start, head, arguments.strides.q)
        k_rows = Rows(
            base=first_row(arguments.tensors.k, batch, key_start, head_kv, arguments.strides.k),
            desc=arguments.k_desc,
            batch=batch,
            start=key_start,
            head=head_kv,
            count=keys,
            stride=arguments.strides.k.row,
        )
        v_rows = Rows(
            base=first_row(arguments.tensors.v, batch, key_start, head_kv, arguments.strides.v),
            desc=arguments.v_desc,
            batch=batch,
            start=key_start,
            head=head_kv,
            count=keys,
            stride=arguments.strides.v.row,
        )
        # By pointers: a tile loaded by a descriptor and reshaped would be a register operand, copied for every product.
        q = load_rows(
            base=q_base,
            first=first,
            count=queries,
            stride=arguments.strides.q.row,
            DIM=META.DIM,
            BLOCK=BLOCK_M,
            BLOCK_DIM=META.BLOCK_D,
            WHOLE=False,
        )  # [BLOCK_M, BLOCK_D]
        rows = first + tl.arange(0, BLOCK_M)
        shift = keys - queries
        reach = keys_of_rows(
            first=first,
            last=tl.minimum(first + BLOCK_M, queries) - 1,
            keys=keys,
            shift=shift,
            left=arguments.left,
            right=arguments.right,
            HAS_LEFT=META.HAS_LEFT,
            HAS_RIGHT=META.HAS_RIGHT,
        )
        key_tiles = tiles_of(reach, META.BLOCK_N)
        whole, split = key_tiles.whole, key_tiles.split
        mask = Mask(
            rows=rows, whole=whole, split=split, keys=keys, shift=shift, left=arguments.left, right=arguments.right
        )
        acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
        row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        row_sum = tl.zeros([BLOCK_M], tl.float32)
        start = whole
        stop = split
        if META.FUSED:
            start = key_tiles.begin
            stop = key_tiles.end
        if META.AHEAD:
            if start < stop:
                k = load_tile(
                    k_rows, start * META.BLOCK_N, META.DIM, META.BLOCK_N, META.BLOCK_D, not META.FUSED, META.TMA
                )
                scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                scores = hide(scores, start * META.BLOCK_N, start, mask, META, False)
                folded = fold(scores, row_max, row_sum, arguments.scale, META.MIX)
                factor, row_max, row_sum = folded.factor, folded.row_max, folded.sums
                # Carried through the loop as integers: Triton would move carried floats through shared memory.
                bits = folded.weights.to(q.dtype).to(BITS, bitcast=True)
                for index in tl.range(start + 1, stop, disable_licm=True):
                    at = index * META.BLOCK_N
                    k = load_tile(k_rows, at, META.DIM, META.BLOCK_N, META.BLOCK_D, not META.FUSED, META.TMA)
                    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # [BLOCK_M, META.BLOCK_N]
                    v = load_tile(
                        v_rows, at - META.BLOCK_N, META.DIM_V, META.BLOCK_N, BLOCK_V, not META.FUSED, META.TMA
                    )
                    acc = tl.dot(bits.to(q.dtype, bitcast=True), v, acc * factor[:, None], input_precision=PRECISION)
                    # Overlaps with the product above, which is waited for only when the next tile's scores are ready.
                    scores = hide(scores, at, index, mask, META, False)
                    following = fold(scores, row_max, row_sum, arguments.scale, META.MIX)
                    factor, row_max, row_sum = following.factor, following.row_max, following.sums
                    bits = following.weights.to(q.dtype).to(BITS, bitcast=True)
                v = load_tile(
                    v_rows, (stop - 1) * META.BLOCK_N, META.DIM_V, META.BLOCK_N, BLOCK_V, not META.FUSED, META.TMA
                )
                acc = tl.dot(bits.to(q.dtype, bitcast=True), v, acc * factor[:, None], input_precision=PRECISION)
        else:
            for index in tl.range(start, stop, disable_licm=True):
                at = index * META.BLOCK_N
                k = load_tile(k_rows, at, META.DIM, META.BLOCK_N, META.BLOCK_D, not META.FUSED, META.TMA)
                scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                scores = hide(scores, at, index, mask, META, False)
                folded = fold(scores, row_max, row_sum, arguments.scale, META.MIX)
                row_max, row_sum = folded.row_max, folded.sums
                v = load_tile(v_rows, at, META.DIM_V, META.BLOCK_N, BLOCK_V, not META.FUSED, META.TMA)
                acc = tl.dot(folded.weights.to(v.dtype), v, acc * folded.factor[:, None], input_precision=PRECISION)
        if not META.FUSED:
            # One stage: there are few such tiles, and with more stages Triton 3.6 makes products wait for each other.
            for index in tl.range(0, whole - key_tiles.begin + key_tiles.end - split, num_stages=1, disable_licm=True):
                at = masked_tile(index, key_tiles) * META.BLOCK_N
                # The tile may contain keys of the next sequence: their scores are hidden.
                k = load_tile(k_rows, at, META.DIM, META.BLOCK_N, META.BLOCK_D, False, META.TMA)
                scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                scores = hide(scores, at, 0, mask, META, True)
                folded = fold(scores, row_max, row_sum, arguments.scale, META.MIX)
                row_max, row_sum = folded.row_max, folded.sums
                v = load_tile(v_rows, at, META.DIM_V, META.BLOCK_N, BLOCK_V, False, TMA_ENDS)
                acc = tl.dot(folded.weights.to(v.dtype), v, acc * folded.factor[:, None], input_precision=PRECISION)

        empty = row_sum == 0.0  # false for NaN
        total = tl.where(empty, 1.0, row_sum)
        acc = acc * (1.0 / total)[:, None]
        out_base = first_row(arguments.tensors.out, batch, query_start, head, arguments.strides.out)
        store_rows(
            base=out_base,
            first=first,
            count=queries,
            stride=arguments.strides.out.row,
            tile=acc,
            DIM=META.DIM_V,
            BLOCK=BLOCK_M,
            BLOCK_DIM=BLOCK_V,
        )
        lse = tl.where(empty, float("-inf"), (row_max * arguments.scale + tl.math.log2(total)) * LN_2)
        lse_base = first_row(
            arguments.lse_ptr,
            batch,
            query_start,
            head,
            Strides(batch=arguments.lse_batch, row=1, head=arguments.lse_head),
        )
        tl.store(lse_base + rows, lse, mask=rows < queries)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_forward(
    tensors,
    lse_ptr,
    k_desc,
    v_desc,
    cu_q_ptr,
    cu_k_ptr,
    seqlen_q,
    seqlen_k,
    strides,
    lse_batch,
    lse_head,
    scale,
    left,
    right,
    heads,
    repeats,
    pairs,
    tiles,
    group,
    META: tl.constexpr,
):
    """One tile of queries per program; with PERSISTENT a program per SM, which takes tiles at a fixed stride."""
    arguments = Arguments(
        tensors=tensors,
        lse_ptr=lse_ptr,
        k_desc=k_desc,
        v_desc=v_desc,
        cu_q_ptr=cu_q_ptr,
        cu_k_ptr=cu_k_ptr,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        strides=strides,
        lse_batch=lse_batch,
        lse_head=lse_head,
        scale=scale,
        left=left,
        right=right,
        heads=heads,
        repeats=repeats,
        pairs=pairs,
        tiles=tiles,
        group=group,
    )
    if META.PERSISTENT:
        for program in tl.range(tl.program_id(0), tiles * pairs, tl.num_programs(0), num_stages=1):
            attend_rows(program, arguments, META)
    else:
        attend_rows(tl.program_id(0), arguments, META)
