# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Row-wise kernels: a program reads a row, computes in fp32, and rounds the result once.

hstu_embed    x[i] = table[ids[i]] · scale + places[positions[i]]
hstu_norm     y[i] = LN(x[i])
hstu_silu     x[i] = SiLU(x[i]), a block of columns per program, in place
hstu_gate     y[i] = LN(a[i]) · s with s = SiLU(u[i]), or Meta's [s, a[i], LN(a[i]) · s]
hstu_pick     y[i] = x[rows[i]] / max(|x[rows[i]]|, eps)
hstu_tower    y[i] = ReLU(x[i]) Wᵀ + b for each tower: small products of a few rows at a time
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.dense.parts import add_parts, unshuffled


@triton.jit
@no_type_check
def hstu_embed(ids_ptr, positions_ptr, table_ptr, places_ptr, out_ptr, scale, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """A scaled token embedding plus its position embedding."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    there = dims < DIM
    token = tl.load(ids_ptr + row).to(tl.int64)
    place = tl.load(positions_ptr + row).to(tl.int64)
    x = tl.load(table_ptr + token * DIM + dims, mask=there, other=0.0).to(tl.float32)
    p = tl.load(places_ptr + place * DIM + dims, mask=there, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * DIM + dims, (x * scale + p).to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
@no_type_check
def normed_row(x, dims, weight, bias, eps, DIM: tl.constexpr):
    """LN of a row in fp32."""
    off = tl.where(dims < DIM, x - tl.sum(x, axis=0) / DIM, 0.0)
    return off * tl.rsqrt(tl.sum(off * off, axis=0) / DIM + eps) * weight + bias


@triton.jit
@no_type_check
def hstu_norm(x_ptr, weight_ptr, bias_ptr, out_ptr, eps, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """A row, normalised."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * DIM + dims, mask=dims < DIM, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + dims, mask=dims < DIM, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + dims, mask=dims < DIM, other=0.0).to(tl.float32)
    normed = normed_row(x, dims, weight, bias, eps, DIM)
    tl.store(out_ptr + row * DIM + dims, normed.to(out_ptr.dtype.element_ty), mask=dims < DIM)


@triton.jit
@no_type_check
def hstu_silu(x_ptr, row_stride, columns, BLOCK: tl.constexpr):
    """SiLU of a block of a row's columns, in place."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < columns
    place = x_ptr + tl.program_id(0).to(tl.int64) * row_stride + at
    x = tl.load(place, mask=there, other=0.0).to(tl.float32)
    tl.store(place, (x / (1.0 + tl.exp(-x))).to(x_ptr.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=("parts",))
@no_type_check
def hstu_gate(
    a_ptr,
    u_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    count_ptr,
    u_row,
    eps,
    parts,
    scale,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    COUNTED: tl.constexpr,
    SPLIT: tl.constexpr,
    SHUFFLED: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """LayerNorm and gate of one row of attention; WHOLE: the paper's layer, otherwise Meta's.

    With SPLIT the row is first summed from its parts, scaled and rounded exactly as `hstu_sum_parts` does.
    """
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    there = dims < DIM
    kind = out_ptr.dtype.element_ty
    # Loaded before the parts, so that these loads overlap with the sum of the parts.
    u = tl.load(u_ptr + row * u_row + dims, mask=there, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + dims, mask=there, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + dims, mask=there, other=0.0).to(tl.float32)
    if COUNTED:
        known = row < tl.load(count_ptr)
    if SPLIT:
        a = add_parts(
            from_ptr=a_ptr + row * parts * DIM,
            at=dims,
            column=dims,
            parts=parts,
            step=DIM,
            DIM=DIM,
            BLOCK=BLOCK,
            AT_ONCE=AT_ONCE,
        )
        if SHUFFLED:
            a = unshuffled(a, BLOCK)
        a = (a * scale).to(kind).to(tl.float32)
    else:
        a = tl.load(a_ptr + row * DIM + dims, mask=there, other=0.0).to(tl.float32)
    s = u / (1.0 + tl.exp(-u))
    gated = normed_row(a, dims, weight, bias, eps, DIM) * s
    if COUNTED:
        # Attention does not write these rows: they may hold NaN.
        gated = tl.where(known, gated, 0.0)
        a = tl.where(known, a, 0.0)
    if WHOLE:
        tl.store(out_ptr + row * DIM + dims, gated.to(kind), mask=there)
    else:
        to = out_ptr + row * (3 * DIM) + dims
        tl.store(to, s.to(kind), mask=there)
        tl.store(to + DIM, a.to(kind), mask=there)
        tl.store(to + 2 * DIM, gated.to(kind), mask=there)


@triton.jit
@no_type_check
def hstu_pick(x_ptr, rows_ptr, out_ptr, eps, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """A gathered row, divided by its norm."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    there = dims < DIM
    source = tl.load(rows_ptr + row).to(tl.int64)
    x = tl.load(x_ptr + source * DIM + dims, mask=there, other=0.0).to(tl.float32)
    length = tl.maximum(tl.sqrt(tl.sum(x * x, axis=0)), eps)
    tl.store(out_ptr + row * DIM + dims, (x / length).to(out_ptr.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=("rows",))
@no_type_check
def hstu_tower(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
):
    """A block of rows and outputs of one tower."""
    tower = tl.program_id(1)
    towers = tl.num_programs(1)
    at = (tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[:, None]
    column = (tl.program_id(2) * BLOCK_OUT + tl.arange(0, BLOCK_OUT))[None, :]
    acc = tl.zeros([BLOCK, BLOCK_OUT], tl.float32)
    for first in tl.static_range(0, IN, BLOCK_IN):
        known = first + tl.arange(0, BLOCK_IN)
        from_ptr = x_ptr + at * (towers * IN) + tower * IN + known[None, :]
        x = tl.load(from_ptr, mask=(at < rows) & (known < IN)[None, :], other=0.0).to(tl.float32)
        x = tl.where(x < 0, 0.0, x).to(x_ptr.dtype.element_ty)  # NaN stays NaN
        w_ptr = weight_ptr + (tower * OUT + column) * IN + known[:, None]
        w = tl.load(w_ptr, mask=(column < OUT) & (known < IN)[:, None], other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    acc += tl.load(bias_ptr + tower * OUT + column, mask=column < OUT, other=0.0).to(tl.float32)
    to = out_ptr + at * (towers * OUT) + tower * OUT + column
    tl.store(to, acc.to(out_ptr.dtype.element_ty), mask=(at < rows) & (column < OUT))
