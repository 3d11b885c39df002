# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Products of parts of queries and parts of keys for Hopper: `portable.predict.multiply_parts`, warp-specialized.

    producer      loads both operands of a step by TMA as soon as a stage is free, also those of the program's next tile
    consumer      64 parts of queries by TILE_K parts of keys; one step's product is always in flight

The loads of a program's next tile overlap with the exponentials of the tile before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, no_type_check

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents

from attnbench.kernels.flash.hopper.tiles import max_of
from attnbench.kernels.shared.card import processors
from attnbench.kernels.shared.hopper import ROWS, Argument, Ring, aggregate, allocate_ring, flat, load_tile, tile_layout
from attnbench.kernels.shared.kept import descriptor_of, launch

if TYPE_CHECKING:
    from torch import Tensor

COUNTS = ("heads", "heads_kv", "parts_q", "parts_k", "columns", "items")
"Launch arguments whose values the code is not specialized for."
GROUPS = gl.constexpr(2)
"Consumer warpgroups of a program."
TILE_K = 256
"Parts of keys of a tile."
CHUNK = 64
"Dims of a step."
STAGES = 4
MAX_REGISTERS, REGISTERS = 168, 240
"Registers of a thread at the start, and of a consumer's."


class PartsMeta(NamedTuple):
    """Compile-time constants of `multiply_parts_hopper`."""

    STRIDE: int
    PARTS: int
    CHUNKS: int
    STAGES: int
    REGISTERS: int


class Item(NamedTuple):
    """A tile of one head."""

    batch: Any
    head: Any
    q: Any
    "first part of its queries"
    tile: Any
    "number of its tile of keys"


@aggregate
class Parts:
    """Arguments of all warps."""

    q_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    ring: Ring
    "of the keys' tiles; the queries' are loaded on the same mbarriers"
    q_tiles: gl.shared_memory_descriptor
    "tiles of queries, one for each stage and warpgroup"
    scores_ptr: Argument
    largest_ptr: Argument
    heads: Argument
    heads_kv: Argument
    parts_q: Argument
    parts_k: Argument
    columns: Argument
    items: Argument
    scale: Argument
    STRIDE: gl.constexpr
    PARTS: gl.constexpr
    CHUNKS: gl.constexpr
    STEPS: gl.constexpr
    TILE_K: gl.constexpr

    @gluon.jit
    @no_type_check
    def across(self):
        """Tiles of keys of a head."""
        return (self.parts_k + self.TILE_K - 1) // self.TILE_K

    @gluon.jit
    @no_type_check
    def item(self, number):
        """A work item by its number: tiles that read the same queries follow each other."""
        TILE_Q: gl.constexpr = GROUPS * ROWS
        across = self.across()
        tiles = (self.parts_q + TILE_Q - 1) // TILE_Q * across
        pair = number // tiles
        tile = number - pair * tiles
        batch = pair // self.heads
        return Item(batch=batch, head=pair - batch * self.heads, q=tile // across * TILE_Q, tile=tile % across)


@gluon.jit
@no_type_check
def load_parts(parts):
    """The producer warp."""
    STRIDE: gl.constexpr = parts.STRIDE
    CHUNK_DIMS: gl.constexpr = parts.ring.COLUMNS
    BYTES: gl.constexpr = GROUPS * ROWS * CHUNK_DIMS * parts.ring.tiles.dtype.primitive_bitwidth // 8
    repeats = parts.heads // parts.heads_kv
    count = 0
    for number in range(gl.program_id(0), parts.items, gl.num_programs(0)):
        item = parts.item(number)
        for step in range(parts.STEPS):
            product = step // parts.CHUNKS
            column = step % parts.CHUNKS * CHUNK_DIMS
            if STRIDE > 0:
                of_query = STRIDE - 1 - product
                of_key = product
            else:
                of_query = product // 2
                of_key = product % 2
            tile, barrier = parts.ring.begin(count, BYTES)
            load_tile(
                parts.k_desc,
                [item.batch, item.head // repeats, item.tile * parts.TILE_K, of_key, column],
                barrier,
                tile,
            )
            stage = count % parts.ring.STAGES
            for group in gl.static_range(GROUPS):
                load_tile(
                    parts.q_desc,
                    [item.batch, item.head, item.q + group * ROWS, of_query, column],
                    barrier,
                    parts.q_tiles.index(stage * GROUPS + group),
                )
            count += 1


@gluon.jit
@no_type_check
def multiply_tiles(parts, WARPGROUP: gl.constexpr):
    """A consumer warpgroup."""
    PARTS: gl.constexpr = parts.PARTS
    TILE: gl.constexpr = parts.TILE_K
    SIDE: gl.constexpr = TILE // PARTS
    PRODUCTS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    STORED: gl.constexpr = gl.BlockedLayout([1, 4], [128 // SIDE, SIDE // 4], [4, 1], [1, 0])
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, STORED)
    ring = parts.ring
    across = parts.across()
    none = gl.zeros([ROWS, TILE], gl.float32, PRODUCTS)
    count = 0
    for number in range(gl.program_id(0), parts.items, gl.num_programs(0)):
        item = parts.item(number)
        ring.wait(count)
        q = flat(parts.q_tiles.index(count % ring.STAGES * GROUPS + WARPGROUP))
        found = warpgroup_mma(q, ring.tile(count).permute([1, 0]), none, use_acc=False, is_async=True)
        found = warpgroup_mma_wait(1, [found])
        for step in range(1, parts.STEPS):
            at = count + step
            ring.wait(at)
            q = flat(parts.q_tiles.index(at % ring.STAGES * GROUPS + WARPGROUP))
            found = warpgroup_mma(q, ring.tile(at).permute([1, 0]), found, is_async=True)
            found = warpgroup_mma_wait(1, [found])
            ring.release(at - 1)
        found = warpgroup_mma_wait(0, [found])
        count += parts.STEPS
        ring.release(count - 1)
        if item.tile * TILE + TILE > parts.parts_k:
            part = item.tile * TILE + gl.arange(0, TILE, gl.SliceLayout(0, PRODUCTS))
            found = gl.where((part < parts.parts_k)[None, :], found, float("-inf"))
        largest = gl.convert_layout(max_of(found), gl.SliceLayout(1, PRODUCTS)) * parts.scale
        largest = gl.where(gl.abs(largest) == float("inf"), 0.0, largest)
        weights = gl.exp2(found * parts.scale - largest[:, None])
        sums = gl.convert_layout(gl.sum(weights.reshape([ROWS, SIDE, PARTS]), 2), STORED)
        row = item.q + WARPGROUP * ROWS + gl.arange(0, ROWS, OF_ROWS)
        column = item.tile * SIDE + gl.arange(0, SIDE, gl.SliceLayout(0, STORED))
        at_row = gl.cast(item.batch * parts.heads + item.head, gl.int64) * parts.parts_q + row
        there = row < parts.parts_q
        gl.store(parts.largest_ptr + at_row * across + item.tile, gl.convert_layout(largest, OF_ROWS), mask=there)
        gl.store(
            parts.scores_ptr + at_row[:, None] * parts.columns + column[None, :],
            sums,
            mask=there[:, None] & (column < parts.columns)[None, :],
        )


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def multiply_parts_hopper(
    q_desc,
    k_desc,
    scores_ptr,
    largest_ptr,
    heads,
    heads_kv,
    parts_q,
    parts_k,
    columns,
    items,
    scale,
    META: gl.constexpr,
):
    """Scores as of `multiply_parts` with more than one part a block; allocate the ring, and start the warps."""
    gdc_launch_dependents()  # allows `select_blocks` to start, which waits for the end of this kernel
    STRIDE: gl.constexpr = META.STRIDE
    CHUNKS: gl.constexpr = META.CHUNKS
    PRODUCTS: gl.constexpr = STRIDE if STRIDE > 0 else 3
    ring = allocate_ring(k_desc, META.STAGES, GROUPS)
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [META.STAGES * GROUPS] + q_desc.block_shape, q_desc.layout)
    fence_async_shared()
    parts = Parts(
        q_desc=q_desc,
        k_desc=k_desc,
        ring=ring,
        q_tiles=q_tiles,
        scores_ptr=scores_ptr,
        largest_ptr=largest_ptr,
        heads=heads,
        heads_kv=heads_kv,
        parts_q=parts_q,
        parts_k=parts_k,
        columns=columns,
        items=items,
        scale=scale,
        STRIDE=STRIDE,
        PARTS=META.PARTS,
        CHUNKS=CHUNKS,
        STEPS=PRODUCTS * CHUNKS,
        TILE_K=k_desc.block_shape[2],
    )
    gl.warp_specialize(
        [(multiply_tiles, (parts, 0)), (multiply_tiles, (parts, 1)), (load_parts, (parts,))],
        [4, 1],
        [META.REGISTERS, 24],
    )


def is_described(x: Tensor, unit: int) -> bool:
    """Whether `groups_of` can describe rows [B, H, S, D]: 16 bits, whole groups, strides multiples of 16 bytes."""
    item = x.element_size()
    strides = [stride for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True) if size > 1]
    aligned = all(stride > 0 and stride * item % 16 == 0 for stride in strides)
    return item == 2 and x.stride(3) == 1 and x.shape[2] % unit == 0 and aligned and x.data_ptr() % 16 == 0


def groups_of(x: Tensor, unit: int, groups: int, columns: int) -> Any:
    """A TMA descriptor of rows [B, H, S, D] as [B, H, S / unit, unit, D].

    Args:
        x: as `is_described` accepts.
        unit: rows of a group.
        groups: of a tile.
        columns: of a tile; columns past the dims, and groups past the last, read as 0.

    Returns:
        A descriptor of tiles [1, 1, groups, 1, columns]: of so many groups one row each.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    batch, heads, rows, dim = x.shape
    # The stride of an axis with one element is not used, and need not be aligned.
    strides = [stride if size > 1 else 8 for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True)]
    return descriptor_of(
        TensorDescriptor,
        x,
        [batch, heads, rows // unit, unit, dim],
        [strides[0], strides[1], strides[2] * unit, strides[2], 1],
        [1, 1, groups, 1, columns],
        tile_layout(x.dtype, groups, columns),
    )


def launch_hopper_products(
    q: Tensor, k: Tensor, found: Tensor, largest: Tensor, parts_k: int, *, stride: int, parts: int, scale: float
) -> None:
    """Compute `found` and `largest` as `multiply_parts` does with more than one part a block; allocates nothing.

    Args:
        q: [B, H, rows, D], tokens with a stride and otherwise means, as `is_described` accepts.
        k: [B, G, rows, D], the same.
        found: fp32 [B, H, parts of queries, columns].
        largest: fp32 [B, H, parts of queries, tiles of TILE_K parts of keys].
        parts_k: parts of keys.
        stride: rows of a part; 0: of means, two.
        parts: parts of a block of keys, 2 to 8.
        scale: of the products, to base 2.
    """
    batch, heads, parts_q, columns = found.shape
    unit = stride or 2
    width = triton.next_power_of_2(q.shape[3])
    chunk = min(CHUNK, max(16, width))
    items = batch * heads * triton.cdiv(parts_q, GROUPS.value * ROWS.value) * triton.cdiv(parts_k, TILE_K)
    launch(
        multiply_parts_hopper,
        (min(items, processors(q)),),
        q_desc=groups_of(q, unit, ROWS.value, chunk),
        k_desc=groups_of(k, unit, TILE_K, chunk),
        scores_ptr=found,
        largest_ptr=largest,
        heads=heads,
        heads_kv=k.shape[1],
        parts_q=parts_q,
        parts_k=parts_k,
        columns=columns,
        items=items,
        scale=scale,
        META=PartsMeta(STRIDE=stride, PARTS=parts, CHUNKS=max(16, width) // chunk, STAGES=STAGES, REGISTERS=REGISTERS),
        num_warps=4,
        maxnreg=MAX_REGISTERS,
    )
