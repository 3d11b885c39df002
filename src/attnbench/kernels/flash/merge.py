# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Merge two outputs of the same queries over different keys in place, as ring attention over several devices does.

    lse = log(exp lse₁ + exp lse₂)        out = out₁ exp(lse₁ - lse) + out₂ exp(lse₂ - lse)

Computed in fp32; each element is read and written once.  A query that sees no key on one side has lse -∞ there and gets
the other side's output; it gets 0 if it sees no key on either side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, no_type_check

import torch
import triton
import triton.language as tl

from attnbench.kernels.shared.kept import launch
from attnbench.kernels.shared.tiling import block_of

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 16
"Rows of a program, all of one head."


@triton.jit(do_not_specialize=("rows",))
@no_type_check
def flash_merge(
    out_ptr,
    lse_ptr,
    part_ptr,
    part_lse_ptr,
    rows,
    out_row,
    lse_head,
    part_row,
    part_lse_head,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Merge a tile of rows of a head.  Heads are DIM elements apart; rows `out_row` and `part_row` elements."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    dim = tl.arange(0, BLOCK_DIM)
    there = row < rows
    mask = there[:, None] & (dim < DIM)[None, :]
    wide = row.to(tl.int64)
    lse_at = lse_ptr + head.to(tl.int64) * lse_head + row
    mine = tl.load(lse_at, mask=there, other=0.0)
    its = tl.load(part_lse_ptr + head.to(tl.int64) * part_lse_head + row, mask=there, other=0.0)
    most = tl.maximum(mine, its)
    most = tl.where(most == float("-inf"), 0.0, most)  # no key on either side: weights of 0, not NaN
    a, b = tl.exp(mine - most), tl.exp(its - most)
    total = a + b
    sees = total != 0.0  # true for sums above 0, and false for NaN
    safe = tl.where(sees, total, 1.0)
    scale = tl.where(sees, 1.0 / safe, 0.0)
    tl.debug_barrier()  # threads of other warps load the same log-sum-exps, and may be later than this store
    tl.store(lse_at, tl.where(sees, most + tl.log(safe), float("-inf")), mask=there)
    out_at = out_ptr + wide[:, None] * out_row + head * DIM + dim[None, :]
    part_at = part_ptr + wide[:, None] * part_row + head * DIM + dim[None, :]
    out = tl.load(out_at, mask=mask, other=0.0).to(tl.float32) * (a * scale)[:, None]
    out += tl.load(part_at, mask=mask, other=0.0).to(tl.float32) * (b * scale)[:, None]
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=mask)


def merge_outputs(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge `part` into `out`, and `part_lse` into `lse`, in place, on the current device.

    Args:
        out: [T, H, D], the heads of a row contiguous, any row stride.
        lse: fp32 [H, T], last stride 1; -∞ where a query has seen no key.
        part: like `out`.
        part_lse: like `lse`.

    Raises:
        ValueError: a shape, stride or dtype is not supported.
    """
    rows, heads, dim = out.shape
    for name, x, shape, strides in (
        ("out", out, (rows, heads, dim), (dim, 1)),
        ("part", part, (rows, heads, dim), (dim, 1)),
        ("lse", lse, (heads, rows), (1,)),
        ("part_lse", part_lse, (heads, rows), (1,)),
    ):
        gaps = any(n > 1 and own != stride for n, own, stride in zip(shape[1:], x.stride()[1:], strides, strict=True))
        if tuple(x.shape) != shape or (x.numel() and gaps):
            accepted = f"shape {shape}, the last strides {strides}"
            raise ValueError(f"merge_outputs: {name}={tuple(x.shape)}, strides {x.stride()} does not fit; {accepted}")
    if lse.dtype != torch.float32 or part_lse.dtype != torch.float32:
        raise ValueError(f"merge_outputs: lse.dtype={lse.dtype}, {part_lse.dtype} does not fit; torch.float32")
    if not out.numel():
        return
    launch(
        flash_merge,
        (triton.cdiv(rows, ROWS), heads),
        out_ptr=out,
        lse_ptr=lse,
        part_ptr=part,
        part_lse_ptr=part_lse,
        rows=rows,
        out_row=out.stride(0),
        lse_head=lse.stride(0),
        part_row=part.stride(0),
        part_lse_head=part_lse.stride(0),
        DIM=dim,
        BLOCK_DIM=block_of(dim),
        ROWS=ROWS,
        num_warps=4,
    )
