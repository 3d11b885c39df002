# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Head dims as two pieces, each a power of two of columns: 96 dims are 64 and 32.

A Triton tile has a power of two of columns, so one tile of 96 dims would have 128, a quarter of them zeros that are
stored, read and multiplied.  As pieces it is two tiles that are loaded on the mbarriers of one Ring: scores are the sum
of two products, and the output has two accumulators, each from a product of its own with the same weights.

Everything that can have two pieces is a tuple here: of length one where the dims are one tile.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma, warpgroup_mma_wait

from attnbench.kernels.shared.hopper import ROWS, aggregate, coordinates, flat, load_tile


@aggregate
class Rest:
    """The second piece of a Ring's tiles."""

    desc: tma.tensor_descriptor
    tiles: gl.shared_memory_descriptor
    BYTES: gl.constexpr
    "bytes of a tile"


@aggregate
class Rests:
    """The second pieces of the rings of a forward: each a tuple of length one, or empty where dims are one piece."""

    q: gl.tuple
    "one for each warpgroup"
    k: gl.tuple
    v: gl.tuple


@gluon.jit
@no_type_check
def allocate_rest(desc, STAGES: gl.constexpr):
    """Allocate the second piece of a ring's tiles, none if `desc` is None; before warp specialization."""
    rest = ()
    if desc is not None:
        tiles = gl.allocate_shared_memory(desc.dtype, [STAGES] + desc.block_shape, desc.layout)
        rest = (Rest(desc, tiles, tiles.numel // STAGES * desc.dtype.primitive_bitwidth // 8),)
    return rest


@gluon.jit
@no_type_check
def joint_rest(desc, rest):
    """The second piece of values whose tiles are those of the keys' second piece, none if that has none."""
    if len(rest) == 1:
        rest = (Rest(desc, rest[0].tiles, rest[0].BYTES),)
    return rest


@gluon.jit
@no_type_check
def fill_pieces(ring, rest, count, desc, start, rows, first, head, column=0, AWAIT: gl.constexpr = True):
    """Load a tile as `Ring.fill` does, and its second piece on the same mbarrier."""
    if len(rest) == 0:
        ring.fill(count=count, desc=desc, start=start, rows=rows, first=first, head=head, column=column, AWAIT=AWAIT)
    else:
        ring.fill(count, desc, start, rows, first, head, rest[0].BYTES, AWAIT=AWAIT)
        stage = count % ring.STAGES
        place = coordinates(start, rows, first, head, ring.COLUMNS)
        load_tile(rest[0].desc, place, ring.full.index(stage), rest[0].tiles.index(stage))


@gluon.jit
@no_type_check
def pieces_of(ring, rest, count):
    """The count-th tile, after it was waited for: a tuple of [rows, columns]."""
    pieces = (ring.tile(count),)
    if len(rest) == 1:
        pieces = pieces + (flat(rest[0].tiles.index(count % ring.STAGES)),)
    return pieces


@gluon.jit
@no_type_check
def zero_output(COLUMNS: gl.constexpr, REST: gl.constexpr):
    """Zero accumulators of COLUMNS columns and, unless that is 0, of a second piece of REST columns."""
    acc = (zero_piece(COLUMNS),)
    if REST:
        acc = acc + (zero_piece(REST),)
    return acc


@gluon.jit
@no_type_check
def zero_piece(COLUMNS: gl.constexpr):
    """One piece of `zero_output`."""
    return gl.zeros([ROWS, COLUMNS], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16]))


@gluon.jit
@no_type_check
def add_values(weights, values, acc, STORED: gl.constexpr):
    """Issue the product of the weights, from shared memory (STORED) or registers, with a value tile, for each piece."""
    sums = ()
    for piece in gl.static_range(len(acc)):
        sums = sums + (add_piece(weights, values[piece], acc[piece], STORED),)
    return sums


@gluon.jit
@no_type_check
def add_piece(weights, values, acc, STORED: gl.constexpr):
    """`add_values` of one piece."""
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    if not STORED:
        weights = gl.convert_layout(weights, WEIGHTS)
    return warpgroup_mma(weights, values, acc, is_async=True)


@gluon.jit
@no_type_check
def wait_for_output(acc):
    """The output, after all products have been added to it."""
    return (warpgroup_mma_wait(0, [acc[0]]),) if len(acc) == 1 else warpgroup_mma_wait(0, [acc[0], acc[1]])


@gluon.jit
@no_type_check
def scaled(acc, factor):
    """The output times one factor for each row."""
    products = ()
    for piece in gl.static_range(len(acc)):
        products = products + (scaled_piece(acc[piece], factor),)
    return products


@gluon.jit
@no_type_check
def scaled_piece(acc, factor):
    """`scaled` of one piece."""
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    return acc * gl.convert_layout(factor, OF_ROWS)[:, None]
