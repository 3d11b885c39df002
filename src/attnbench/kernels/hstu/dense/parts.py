# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Split keys: into how many parts the keys of a call are split, and the sum of the parts.

Few queries with many keys have fewer query tiles than a card has SMs.  There is no softmax, so partial sums can simply
be added: programs write theirs to a workspace, and a second kernel adds them in a fixed order.  For a given number of
parts the result is bitwise reproducible; atomics would not be, and would save no pass, because their target has to be
cleared before and converted after.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, no_type_check

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from attnbench.kernels.hstu.dense.configs import LARGEST_PARTS
from attnbench.kernels.shared.kept import empty, launch, rows_in
from attnbench.kernels.shared.tiling import block_of

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE = {True: 16, False: 8}
"Parts that a program of the sum loads at a time, by whether they come from a Hopper kernel: as many as spill nothing."

# Throughputs of an H200 with bf16; only their ratios matter.
_FLOP_US = 6.8e6
"FLOPs that one program's products do in a microsecond"
_BYTES_US = 32e3
"bytes of partial sums that an SM writes and reads again in a microsecond, while all SMs do"
_ITEM_US = 2.5
"from a work item's start to its first product, plus from its last product to its end"
_SUM_US = 6.5
"least time of the second kernel, including what splitting costs the first"


@lru_cache(maxsize=4096)
def parts_of(items: int, rows: int, keys: int, key_tile: int, dims: int, columns: int, processors: int) -> int:
    """Into how many parts to split the keys, from upper bounds alone, without synchronizing with the device.

    The number with the least estimated time: waves of programs, each over a share of the keys and the store of its sum,
    plus the sum of the parts.

    Args:
        items: query tiles of all sequences and heads.
        rows: rows of such a tile.
        keys: most keys of a sequence.
        key_tile: keys of a tile.
        dims: of queries and of values together.
        columns: of a part's row in the workspace.
        processors: SMs of the card.
    """
    tiles = -(-keys // key_tile)
    tile_us = 2 * rows * key_tile * dims / _FLOP_US
    part_us = 2 * 4 * rows * columns / _BYTES_US  # written, and read again by the sum

    def takes(parts: int) -> float:
        waves = -(-items * parts // processors)
        summed = _SUM_US + items * parts / processors * part_us if parts > 1 else 0.0
        return waves * (-(-tiles // parts) * tile_us + _ITEM_US) + summed

    # Beyond two waves of work items, more parts only add stores.
    most = min(tiles, 2 * processors // max(1, items) + 1, LARGEST_PARTS)
    return min(range(1, most + 1), key=takes, default=1)


@triton.jit
@no_type_check
def add_parts(from_ptr, at, column, parts, step, DIM: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr):
    """Sum over all parts, in order, of the elements at `at` [BLOCK]; parts are `step` apart, columns from DIM on 0."""
    total = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, parts, AT_ONCE):
        for part in tl.static_range(AT_ONCE):
            # The condition is the same for all columns, so that four are loaded at once.
            there = tl.zeros([BLOCK], tl.int32) + (first + part) < parts
            if DIM != BLOCK:
                there = there & (column < DIM)
            total += tl.load(from_ptr + part * step + at, mask=there, other=0.0)
        from_ptr += AT_ONCE * step
    return total


@triton.jit
@no_type_check
def unshuffled(row, WIDTH: tl.constexpr):
    """Columns in natural order, from that of the Hopper kernels: of sixteen, 4 i + 2 k + j is column 8 k + 2 i + j."""
    return tl.reshape(tl.permute(tl.reshape(row, (WIDTH // 16, 4, 2, 2)), (0, 2, 1, 3)), (WIDTH,))


@triton.jit(do_not_specialize=("parts", "heads"))
@no_type_check
def hstu_sum_parts(
    parts_ptr,
    out_ptr,
    scale,
    parts,
    heads,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    AT_ONCE: tl.constexpr,
    HOPPER: tl.constexpr,
):
    """A row and head of the output [rows, heads, DIM]: the sum of its parts, in their order.

    Parts are [rows, parts, heads, BLOCK_DIM].  Those of HOPPER kernels have their columns permuted in groups of sixteen:
    column 2 i + j of the k-th eight is column 4 i + 2 k + j.  This kernel is launched while they run, and waits for them; the
    next kernel may be launched while this one runs, and then has to wait too.
    """
    row = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    at = tl.arange(0, BLOCK_DIM)
    column = at
    if HOPPER:
        column = at // 16 * 16 + at % 4 // 2 * 8 + at % 16 // 4 * 2 + at % 2
        gdc_launch_dependents()
        gdc_wait()
    step = heads * BLOCK_DIM
    from_ptr = parts_ptr + row * parts * step + head * BLOCK_DIM
    total = add_parts(
        from_ptr=from_ptr, at=at, column=column, parts=parts, step=step, DIM=DIM, BLOCK=BLOCK_DIM, AT_ONCE=AT_ONCE
    )
    to = (row * heads + head) * DIM + column
    tl.store(out_ptr + to, (total * scale).to(out_ptr.dtype.element_ty), mask=column < DIM)


def workspace_shape(shape: Sequence[int], parts: int) -> tuple[int, ...] | None:
    """Shape of the fp32 partial sums of an output [rows, heads, dim]; None if keys are not split."""
    rows, heads, dim = shape
    return (rows, parts, heads, block_of(dim)) if parts > 1 else None


def workspace_of(q: Tensor, linear_dim: int, parts: int) -> Tensor:
    """Allocate the fp32 partial sums [rows, parts, heads, dim] of the rows and heads of `q`, dims padded to a tile's."""
    return empty((rows_in(q), parts, q.shape[1], block_of(linear_dim)), q, torch.float32)


def launch_sum(workspace: Tensor, out: Tensor, scale: float, *, hopper: bool) -> None:
    """Write `scale` times the sums of a workspace to `out` [rows, heads, dim], contiguous.

    With `hopper` they come from the kernel launched before, a Hopper kernel.
    """
    _, parts, heads, block = workspace.shape
    launch(
        hstu_sum_parts,
        (rows_in(out) * heads,),
        parts_ptr=workspace,
        out_ptr=out,
        scale=scale,
        parts=parts,
        heads=heads,
        DIM=out.shape[2],
        BLOCK_DIM=block,
        AT_ONCE=AT_ONCE[hopper],
        HOPPER=hopper,
        num_warps=max(1, block // 128),
        **({"launch_pdl": True} if hopper else {}),
    )
