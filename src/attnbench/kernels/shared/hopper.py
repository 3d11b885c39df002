# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Building blocks of warp-specialized kernels for Hopper, written in Gluon.

A producer warp fills ring buffers of tiles in shared memory by TMA; it waits only for free stages.  Consumer
warpgroups of four warps process 64 rows each: products read a tile from shared memory, and its stage is free again when
every warpgroup has released it.

    Ring        a ring buffer of tiles, with two mbarriers a stage: full and empty
    WorkQueue   a ring buffer of two stages, through which the producer publishes work items to the consumers
    count       number of tiles that a warp has processed in a ring: stage = count % stages, phase = count // stages % 2

Ping-pong scheduling (`wait_turn`, `pass_turn`): one warpgroup issues its products while the others compute what lies
between products, so that the tensor cores stay busy (Shah et al. 2024, arXiv:2407.08608, section 3.1).

Rows are loaded and stored through descriptors that end at the end of a sequence, packed or not (`rows_of`): two outer
axes whose strides wrap around 64 bits map a coordinate past the sequence's end to one past the tensor's end, which reads
as 0 and is not written.  Nothing here runs in Triton's interpreter; tests/kernels/hopper_machine executes it.
"""

from __future__ import annotations

from functools import cache
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints, no_type_check

import torch
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language import core

from attnbench.kernels.shared.counts import RowCount, describes, descriptor_of, stride_in, strides_in

if TYPE_CHECKING:
    from torch import Tensor

ROWS = gl.constexpr(64)
"Rows of a warpgroup's product."

END = gl.constexpr(2**30)
"Coordinate of the row after a sequence's last, in the descriptor of `rows_of`."

Argument = gl.tensor | gl.constexpr
"Type of a field that holds a launch argument; Triton may compile in an argument that is None or 1."

# Triton 3.6 has other names.
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
store_tile = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
sync_warps = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
_aggregate = gluon.aggregate if hasattr(gluon, "aggregate") else core._aggregate

if hasattr(tma, "async_atomic_add"):
    add_tile = tma.async_atomic_add
else:

    @builtin
    @no_type_check
    def add_tile(tensor_desc, coord, src, _semantic=None) -> None:
        """Add a tile of shared memory to global memory by TMA; Triton 3.6 supports it without a function for it."""
        _semantic.builder.create_async_tma_reduce(
            ir.DESCRIPTOR_REDUCE_KIND.ADD,
            tensor_desc.handle,
            _semantic._convert_to_ir_values(coord, require_i64=False),
            src.handle,
        )


WAITS_FOR_READS = gl.constexpr("read_only" not in signature(tma.store_wait).parameters)
"Whether `tma.store_wait` can only wait until shared memory was read, as that of Triton 3.6."


@gluon.jit
@no_type_check
def await_writes(PENDING: gl.constexpr):
    """Wait until all stores and additions by TMA of this thread have been written, except for the last PENDING."""
    if WAITS_FOR_READS:
        WAIT: gl.constexpr = f"cp.async.bulk.wait_group {PENDING}; mov.u32 $0, 0;"
        gl.inline_asm_elementwise(WAIT, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    else:
        tma.store_wait(PENDING, read_only=False)


def aggregate(cls: type) -> Any:
    """Make a class with annotated fields a Triton aggregate: a group of values with names, passed as one value.

    A field annotated `gl.constexpr` stays a constant wherever the aggregate is passed; inside a tuple it would become a
    runtime value.  Methods are `gluon.jit` functions.  The constructor takes the fields in order or by name.
    """
    fields = get_type_hints(cls)  # Triton 3.6 does not resolve string annotations, and creates no constructor
    signature = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in fields])

    def init(self: Any, *values: Any, **named: Any) -> None:
        for name, value in signature.bind(*values, **named).arguments.items():
            # Triton 3.6 passes a field of META unwrapped.
            plain = fields[name] is gl.constexpr and not isinstance(value, core.base_value)
            setattr(self, name, gl.constexpr(value) if plain else value)

    init.__triton_builtin__ = True  # type: ignore[attr-defined]  # a kernel's hash passes over it
    cls.__annotations__, cls.__init__ = fields, init  # type: ignore[misc]  # a class is made over
    made = _aggregate(cls)
    made.__annotations__ = fields
    return made


@aggregate
class Ring:
    """A ring buffer of tiles in shared memory, filled by one warp and read by warpgroups.

    A tile has the descriptor's shape, [1, 1, rows, 1, columns]; `tiles` in shared memory are [stages, *tile].  Of a
    stage's mbarriers `full` completes when its tile has been loaded, `empty` when all warpgroups have released it.
    """

    tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    STAGES: gl.constexpr
    COLUMNS: gl.constexpr

    @gluon.jit
    @no_type_check
    def fill(
        self, count, desc, start, rows, first, head, EXTRA_BYTES: gl.constexpr = 0, column=0, AWAIT: gl.constexpr = True
    ):
        """Load rows from `first` of a sequence with `rows` rows that begins at row `start`, when a stage is free.

        The caller then loads EXTRA_BYTES on the same mbarrier.  Without AWAIT the stage is known to be free: it is released
        with that of another ring.
        """
        tile, barrier = self.begin(count, EXTRA_BYTES, AWAIT)
        load_tile(desc, coordinates(start, rows, first, head, column), barrier, tile)

    @gluon.jit
    @no_type_check
    def begin(self, count, EXTRA_BYTES: gl.constexpr = 0, AWAIT: gl.constexpr = True):
        """Wait until the count-th tile's stage is free, with AWAIT.

        Returns the stage, and the mbarrier on which all of it is loaded.
        """
        BYTES: gl.constexpr = self.tiles.numel // self.STAGES * self.tiles.dtype.primitive_bitwidth // 8
        stage = count % self.STAGES
        if AWAIT:
            mbarrier.wait(self.empty.index(stage), (count // self.STAGES & 1) ^ 1)
        mbarrier.expect(self.full.index(stage), BYTES + EXTRA_BYTES)
        return self.tiles.index(stage), self.full.index(stage)

    @gluon.jit
    @no_type_check
    def wait(self, count):
        """Wait for the count-th tile.

        The assembler moves waits for products up before work that does not depend on them, so that nothing overlaps with the
        product any more; it moves none across the loop that waits for a tile.  So kernels wait for the next tile there.
        """
        mbarrier.wait(self.full.index(count % self.STAGES), count // self.STAGES & 1)

    @gluon.jit
    @no_type_check
    def tile(self, count):
        """The count-th tile, which must have been waited for: [rows, columns]."""
        return flat(self.tiles.index(count % self.STAGES))

    @gluon.jit
    @no_type_check
    def take(self, count):
        """Wait for the count-th tile and return it: [rows, columns]."""
        self.wait(count)
        return self.tile(count)

    @gluon.jit
    @no_type_check
    def release(self, count, condition=True):
        """Signal that this warpgroup has read the count-th tile; products that read it must have been waited for.

        If `condition`, which must be uniform across threads, is false, nothing happens.
        """
        mbarrier.arrive(self.empty.index(count % self.STAGES), pred=condition)

    @gluon.jit
    @no_type_check
    def release_stored(self, count):
        """Release the last of `count` tiles, if there is one, when the output that was stored from its buffer has left."""
        if count > 0:
            tma.store_wait(0)
            self.release(count - 1)


@gluon.jit
@no_type_check
def allocate_ring(desc, STAGES: gl.constexpr, CONSUMERS: gl.constexpr):
    """A ring of `desc`'s tiles, read by this many warpgroups; before warp specialization."""
    tiles = gl.allocate_shared_memory(desc.dtype, [STAGES] + desc.block_shape, desc.layout)
    COLUMNS: gl.constexpr = desc.block_shape[4]
    return Ring(tiles, allocate_barriers(STAGES, 1), allocate_barriers(STAGES, CONSUMERS), STAGES, COLUMNS)


@gluon.jit
@no_type_check
def allocate_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Mbarriers that complete after this many arrivals; before warp specialization."""
    many = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(COUNT):
        mbarrier.init(many.index(index), ARRIVALS)
    return many


@aggregate
class Rings:
    """The rings of an attention forward."""

    q: gl.tuple
    "one Ring for each warpgroup"
    k: Ring
    v: Ring


@gluon.jit
@no_type_check
def coordinates(start, rows, first, head, column=0):
    """Coordinates for `rows_of`: row `first` of a sequence with `rows` rows that begins at row `start`."""
    return [END, start + rows, END - rows + first, head, column]


@gluon.jit
@no_type_check
def flat(tile):
    """A tile of a descriptor as [rows, columns]."""
    return tile.reshape([tile.shape[2], tile.shape[4]])


@gluon.jit
@no_type_check
def store_output(out_desc, place, part, start, rows, first, head, column=0):
    """Start to store rows of an output through the buffer `place`, which must not be in use; target: `coordinates`."""
    flat(place).store(part.to(out_desc.dtype))
    fence_async_shared()
    sync_warps()
    store_tile(out_desc, coordinates(start, rows, first, head, column), place)


@gluon.jit
@no_type_check
def wait_turn(turns, count, WARPGROUP: gl.constexpr):
    """Wait until it is this warpgroup's turn for the count-th time; warpgroup 0 is the first."""
    mbarrier.wait(turns.index(WARPGROUP), (count & 1) ^ (WARPGROUP == 0))


@gluon.jit
@no_type_check
def pass_turn(turns, WARPGROUP: gl.constexpr):
    """Pass the turn to the next warpgroup."""
    mbarrier.arrive(turns.index((WARPGROUP + 1) % turns.shape[0]))


@gluon.jit
@no_type_check
def skip_tiles(rings, count, unseen, turns=None, WARPGROUP: gl.constexpr = 0, TURNS: gl.constexpr = False):
    """Release the next `unseen` tiles of keys and values, which only other warpgroups read.  Returns the new tile count."""
    for _index in range(unseen):
        if TURNS:
            wait_turn(turns, count, WARPGROUP)
            pass_turn(turns, WARPGROUP)
        rings.k.take(count)
        rings.k.release(count)
        rings.v.take(count)
        rings.v.release(count)
        count += 1
    return count


class WorkRange(NamedTuple):
    """Work items of a program, by their turn in the grid's order."""

    first: Any
    end: Any
    step: Any


@gluon.jit
@no_type_check
def work_range(items, stretch, sharers, SEVERAL: gl.constexpr):
    """Static tile scheduler: the `WorkRange` of a program, which has one item, or items of a `stretch` at a fixed stride."""
    program = gl.program_id(0)
    first = program
    end = program + 1
    step = 1
    if SEVERAL:
        before = program // sharers * sharers
        begin = program // sharers * stretch
        first = begin + program - before
        end = gl.minimum(begin + stretch, items)
        # The last stretch may be shorter, and then has fewer programs.
        step = gl.minimum(sharers, gl.num_programs(0) - before)
    return WorkRange(first=first, end=end, step=step)


@gluon.jit
@no_type_check
def next_work(counter_ptr):
    """Dynamic tile scheduler: the next work item that no program has taken, from an atomic counter.

    Each program's first item is that of its program id.
    """
    return gl.num_programs(0) + gl.atomic_add(counter_ptr, 1, sem="relaxed")


@gluon.constexpr_function
@no_type_check
def place_of(fields, name):
    """Index of a name; an unknown name is a compile-time error."""
    return fields.index(name)


@aggregate
class WorkQueue:
    """A ring buffer of two stages, through which the producer publishes work items to all consumer warpgroups.

    A work item is a named tuple of integers, none of them negative.
    """

    numbers: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    FIELDS: gl.constexpr
    "field names of a work item"

    @gluon.jit
    @no_type_check
    def publish(self, turn, item):
        """Publish the turn-th item, when all warpgroups have released the stage."""
        COUNT: gl.constexpr = len(self.FIELDS)
        stage = turn % 2
        mbarrier.wait(self.empty.index(stage), (turn // 2 & 1) ^ 1)
        for which in gl.static_range(len(item)):
            self.numbers.index(stage * COUNT + which).store(
                gl.full([1], item[which], gl.int32, gl.BlockedLayout([1], [32], [1], [0]))
            )
        mbarrier.arrive(self.full.index(stage))

    @gluon.jit
    @no_type_check
    def finish(self, turn):
        """Publish the end of the work as the turn-th item: its first integer is negative."""
        self.publish(turn, (-1,))

    @gluon.jit
    @no_type_check
    def wait(self, turn):
        """Wait for the turn-th item."""
        mbarrier.wait(self.full.index(turn % 2), turn // 2 & 1)

    @gluon.jit
    @no_type_check
    def number(self, turn, FIELD: gl.constexpr):
        """One field of the turn-th item, which must have been waited for, by name."""
        return self.number_at(turn, place_of(self.FIELDS, FIELD))

    @gluon.jit
    @no_type_check
    def number_at(self, turn, PLACE: gl.constexpr):
        """The same by its index in FIELDS."""
        at = turn % 2 * len(self.FIELDS) + PLACE
        return gl.max(self.numbers.index(at).load(gl.BlockedLayout([1], [32], [4], [0])), 0)

    @gluon.jit
    @no_type_check
    def has_work(self, turn):
        """Whether the turn-th item, which must have been waited for, is a work item, and not the end."""
        return self.number_at(turn, 0) >= 0

    @gluon.jit
    @no_type_check
    def release(self, turn):
        """Release the turn-th item's stage.

        Not right after its numbers were loaded: some warps may still wait for these loads, which products that keep shared
        memory busy delay.
        """
        mbarrier.arrive(self.empty.index(turn % 2))


@gluon.jit
@no_type_check
def allocate_work_queue(CONSUMERS: gl.constexpr, FIELDS: gl.constexpr):
    """A queue of items with these FIELDS, read by this many warpgroups; before warp specialization."""
    numbers = gl.allocate_shared_memory(gl.int32, [2 * len(FIELDS), 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    return WorkQueue(
        numbers=numbers, full=allocate_barriers(2, 1), empty=allocate_barriers(2, CONSUMERS), FIELDS=FIELDS
    )


_NAMES = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float32: gl.float32,
    torch.int8: gl.int8,
    torch.float8_e4m3fn: gl.float8e4nv,
}


@cache  # Making one takes Triton 5 µs, and a call has four to eight.
def tile_layout(dtype: torch.dtype, rows: int, columns: int) -> Any:
    """Shared-memory layout of a tile [1, 1, rows, 1, columns]: swizzled by up to 128 bytes, as products read it."""
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, 1, columns], _NAMES[dtype])


def is_rows(x: Tensor) -> bool:
    """Whether `rows_of` can describe a tensor: sequences follow one another in memory, strides are multiples of 16 bytes."""
    shape, strides, item = x.shape, x.stride(), x.element_size()
    row, head, dim = strides[-3:]
    behind = len(shape) == 3 or shape[0] == 1 or strides[0] == shape[1] * strides[1]
    described = dim == 1 and row != 0 and row * item % 16 == 0 and head != 0 and head * item % 16 == 0
    return behind and described and x.numel() > 0 and x.data_ptr() % 16 == 0


def heads_apart(descriptor: Any, x: Tensor) -> Any:
    """The descriptor with the stride of the heads, which depends on the number of rows, marked as a count."""
    return describes(descriptor, shape={}, strides={3: stride_in(x, 0)})


def rows_of(x: Tensor, rows: int, columns: int) -> Any:
    """A TMA descriptor of packed [rows, heads, dims] or [sequences, rows, heads, dims], for `coordinates`.

    Args:
        x: as `is_rows` accepts.
        rows: of a tile.
        columns: of a tile, a power of two; columns past the dims read as 0.

    Returns:
        A descriptor of tiles [1, 1, rows, 1, columns].
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    far, (stride, head_stride) = 0x7FFF0000, x.stride()[-3:-1]
    found = descriptor_of(
        TensorDescriptor,
        x,
        [far, far, END.value, *x.shape[-2:]],
        [2**34 - stride, stride, stride, head_stride, 1],
        [1, 1, rows, 1, columns],
        tile_layout(x.dtype, rows, columns),
    )
    counted = head_stride if x.dim() == 3 or x.is_contiguous() else strides_in(x, 1)[2]
    return describes(found, shape={}, strides={3: counted}) if isinstance(counted, RowCount) else found
