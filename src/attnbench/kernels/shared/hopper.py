# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""What kernels for Hopper are made of: programs whose warps have jobs of their own, written in Gluon.

One warp loads: it fills rings of tiles in shared memory by tensor maps and waits for nothing but room.
Warpgroups of four warps compute: each takes its own 64 rows through the tiles, products read them where they lie,
and the ring's next tile comes when every warpgroup has given this one back.

    ring    (tiles [stages, 1, 1, rows, 1, columns], full [stages, 1], empty [stages, 1])
    count   how many tiles a warp has had of a ring: slot = count % stages, phase = count // stages % 2

Two or three warpgroups take turns (`wait_turn`, `pass_turn`): one issues its products while the others compute what
lies between products, so that the tensor cores always have work (Shah et al. 2024, arXiv:2407.08608, section 3.1).

Rows come and go through descriptors that end where a sequence does, packed or not (`rows_of`): two outer axes whose
strides wrap around 64 bits bring a coordinate past the sequence's end to one past the tensor's end, which reads as 0
and is not written.  Nothing here runs in Triton's interpreter; tests/kernels/hopper_machine executes it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, no_type_check

import torch
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

if TYPE_CHECKING:
    from torch import Tensor

ROWS = gl.constexpr(64)
"Rows of a warpgroup's product."

FEW = 4
"Jobs of a program in the grid of that name: what it begins and ends with is shared by them."

END = gl.constexpr(2**30)
"What a sequence's last row is to the descriptor of `rows_of`, and one more."

# Triton 3.6 has other names.
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
store_tile = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
sync_warps = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

if hasattr(tma, "async_atomic_add"):
    add_tile = tma.async_atomic_add
else:
    @builtin
    @no_type_check
    def add_tile(tensor_desc, coord, src, _semantic=None) -> None:
        """Add a tile of shared memory to global memory, which Triton 3.6 can but has no name for."""
        _semantic.builder.create_async_tma_reduce(
            ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle,
            _semantic._convert_to_ir_values(coord, require_i64=False), src.handle)


@gluon.jit
@no_type_check
def ring_of(desc, STAGES: gl.constexpr, READERS: gl.constexpr):
    """A ring of `desc`'s tiles that so many warpgroups read; before the warps part."""
    tiles = gl.allocate_shared_memory(desc.dtype, [STAGES] + desc.block_shape, desc.layout)
    return tiles, barriers(STAGES, 1), barriers(STAGES, READERS)


@gluon.jit
@no_type_check
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Barriers that so many arrivals complete; before the warps part."""
    many = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(COUNT):
        mbarrier.init(many.index(index), ARRIVALS)
    return many


@gluon.jit
@no_type_check
def fill(ring, count, desc, start, rows, first, head, BESIDE: gl.constexpr = 0, column=0):
    """Load rows from `first` of a sequence that begins at row `start` and has `rows`, when there is room.

    BESIDE are the bytes that the caller then loads on the same barrier.
    """
    tiles, full, empty = ring
    STAGES: gl.constexpr = tiles.shape[0]
    BYTES: gl.constexpr = tiles.numel // STAGES * tiles.dtype.primitive_bitwidth // 8
    slot = count % STAGES
    mbarrier.wait(empty.index(slot), (count // STAGES & 1) ^ 1)
    mbarrier.expect(full.index(slot), BYTES + BESIDE)
    load_tile(desc, place_of(start, rows, first, head, column), full.index(slot), tiles.index(slot))


@gluon.jit
@no_type_check
def place_of(start, rows, first, head, column=0):
    """Coordinates of `rows_of`: row `first` of a sequence that begins at row `start` and has `rows`."""
    return [END, start + rows, END - rows + first, head, column]


@gluon.jit
@no_type_check
def take(ring, count):
    """Wait for the count-th tile of a ring: [rows, columns]."""
    wait_tile(ring, count)
    return tile_of(ring, count)


@gluon.jit
@no_type_check
def wait_tile(ring, count):
    """Wait for the count-th tile of a ring.

    The assembler moves waits for products up before work that does not need them, and with that nothing runs beside
    the product any more; it moves none across the loop that waits for a tile.  So the next tile is awaited there.
    """
    tiles, full, _empty = ring
    STAGES: gl.constexpr = tiles.shape[0]
    mbarrier.wait(full.index(count % STAGES), count // STAGES & 1)


@gluon.jit
@no_type_check
def tile_of(ring, count):
    """The count-th tile of a ring, which has been waited for: [rows, columns]."""
    tiles, _full, _empty = ring
    STAGES: gl.constexpr = tiles.shape[0]
    return flat(tiles.index(count % STAGES))


@gluon.jit
@no_type_check
def flat(tile):
    """A tile of a descriptor as [rows, columns]."""
    return tile.reshape([tile.shape[2], tile.shape[4]])


@gluon.jit
@no_type_check
def give_back(ring, count):
    """Say that this warpgroup has read the count-th tile; products that read it must have been waited for."""
    tiles, _full, empty = ring
    STAGES: gl.constexpr = tiles.shape[0]
    mbarrier.arrive(empty.index(count % STAGES))


@gluon.jit
@no_type_check
def put(out_desc, place, part, start, rows, first, head, column=0):
    """Send rows of an output by way of `place`, which nothing reads any more; where to is as of `place_of`."""
    flat(place).store(part.to(out_desc.dtype))
    fence_async_shared()
    sync_warps()
    store_tile(out_desc, place_of(start, rows, first, head, column), place)


@gluon.jit
@no_type_check
def leave(q_ring, done):
    """Of `done` tiles of queries, let the last be followed by another, once the output in its place has left."""
    if done > 0:
        tma.store_wait(0)
        give_back(q_ring, done - 1)


@gluon.jit
@no_type_check
def wait_turn(turns, count, WHICH: gl.constexpr):
    """Wait for this warpgroup's count-th turn; the first is warpgroup 0's."""
    mbarrier.wait(turns.index(WHICH), (count & 1) ^ (WHICH == 0))


@gluon.jit
@no_type_check
def pass_turn(turns, WHICH: gl.constexpr):
    """Let the next warpgroup issue its products."""
    mbarrier.arrive(turns.index((WHICH + 1) % turns.shape[0]))


@gluon.jit
@no_type_check
def pass_over(rings, count, unseen, turns=None, WHICH: gl.constexpr = 0, TURNS: gl.constexpr = False):
    """Give back the next `unseen` tiles as they come, which others read; the count after them."""
    _q_rings, k_ring, v_ring = rings
    for _index in range(unseen):
        if TURNS:
            wait_turn(turns, count, WHICH)
            pass_turn(turns, WHICH)
        take(k_ring, count)
        give_back(k_ring, count)
        take(v_ring, count)
        give_back(v_ring, count)
        count += 1
    return count


@gluon.jit
@no_type_check
def jobs_of(jobs, stretch, sharers, SEVERAL: gl.constexpr):
    """Which jobs are a program's: first, end and step; one, or of a `stretch` of jobs every so many-th."""
    program = gl.program_id(0)
    first = program
    end = program + 1
    step = 1
    if SEVERAL:
        before = program // sharers * sharers
        begin = program // sharers * stretch
        first = begin + program - before
        end = gl.minimum(begin + stretch, jobs)
        # The last stretch may be shorter, and then has fewer programs.
        step = gl.minimum(sharers, gl.num_programs(0) - before)
    return first, end, step


@gluon.jit
@no_type_check
def draw(drawn_ptr):
    """The next ticket that nobody has."""
    return gl.num_programs(0) + gl.atomic_add(drawn_ptr, 1, sem="relaxed")


@gluon.jit
@no_type_check
def tickets_for(READERS: gl.constexpr, COUNT: gl.constexpr):
    """A ring of COUNT numbers each that one warp tells to so many warpgroups; before the warps part."""
    numbers = gl.allocate_shared_memory(gl.int32, [2 * COUNT, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    return numbers, barriers(2, 1), barriers(2, READERS)


@gluon.jit
@no_type_check
def tell(tickets, turn, values):
    """Tell the turn-th numbers, or the first of them, when all have read those in their place."""
    numbers, full, empty = tickets
    COUNT: gl.constexpr = numbers.shape[0] // 2
    slot = turn % 2
    mbarrier.wait(empty.index(slot), (turn // 2 & 1) ^ 1)
    for which in gl.static_range(len(values)):
        numbers.index(slot * COUNT + which).store(
            gl.full([1], values[which], gl.int32, gl.BlockedLayout([1], [32], [1], [0])))
    mbarrier.arrive(full.index(slot))


@gluon.jit
@no_type_check
def hear(tickets, turn):
    """Wait for the turn-th numbers."""
    mbarrier.wait(tickets[1].index(turn % 2), turn // 2 & 1)


@gluon.jit
@no_type_check
def number_of(tickets, turn, WHICH: gl.constexpr):
    """One of the turn-th numbers, which have been waited for."""
    numbers = tickets[0]
    COUNT: gl.constexpr = numbers.shape[0] // 2
    return gl.max(numbers.index(turn % 2 * COUNT + WHICH).load(gl.BlockedLayout([1], [32], [4], [0])), 0)


@gluon.jit
@no_type_check
def forget(tickets, turn):
    """Let others take the turn-th numbers' place.

    Not where they have just been loaded: warps that have met may still wait for that, while products keep shared memory
    busy.
    """
    mbarrier.arrive(tickets[2].index(turn % 2))


def shared_out(grid: str, tiles: int, pairs: int, group: int, processors: int) -> tuple[int, int, int]:
    """Programs of a grid, how many jobs are shared out together, and among how many programs: for `jobs_of`.

    Args:
        grid: tiles: a job each; few: of a section FEW each, which lie far apart; else one an SM, of all jobs.
        tiles: jobs of a (sequence, head) pair.
        pairs: of these.
        group: pairs of a section.
        processors: SMs of the card.
    """
    jobs = tiles * pairs
    if grid == "tiles":
        return jobs, jobs, jobs
    if grid == "few":
        stretch = tiles * group
        sharers = -(-stretch // FEW)
        return jobs // stretch * sharers + -(-(jobs % stretch) // FEW), stretch, sharers
    return min(jobs, processors), jobs, min(jobs, processors)


@cache  # Triton takes 5 µs for one, and a call has four to eight.
def tile_layout(dtype: torch.dtype, rows: int, columns: int) -> Any:
    """How a tile [1, 1, rows, 1, columns] lies in shared memory: swizzled by up to 128 bytes, as products read it."""
    names = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, 1, columns], names[dtype])


def is_rows(x: Tensor) -> bool:
    """Whether `rows_of` can describe a tensor: its sequences lie behind one another, strides are of 16 bytes."""
    item = x.element_size()
    strides = x.stride()[-3:-1]
    behind = x.dim() == 3 or x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
    return behind and x.numel() > 0 and x.data_ptr() % 16 == 0 and x.stride(-1) == 1 and all(
        stride * item % 16 == 0 and stride for stride in strides)


def rows_of(x: Tensor, rows: int, columns: int) -> Any:
    """Describe packed [rows, heads, dims] or [sequences, rows, heads, dims] for `place_of`.

    Args:
        x: as `is_rows` accepts.
        rows: of a tile.
        columns: of a tile, a power of two; past the dims they are 0.

    Returns:
        A descriptor of tiles [1, 1, rows, 1, columns].
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    far, (stride, head_stride) = 0x7FFF0000, x.stride()[-3:-1]
    return TensorDescriptor(x, [far, far, END.value, *x.shape[-2:]], [2**34 - stride, stride, stride, head_stride, 1],
                            [1, 1, rows, 1, columns], tile_layout(x.dtype, rows, columns))
