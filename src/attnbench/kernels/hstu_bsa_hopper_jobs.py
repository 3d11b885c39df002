# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Jobs of `select` for Hopper: numbers drawn, what they stand for, and what their rows see.

Numbers go through the sequences one after another, some for each; no number stands for nothing, whatever the lengths.
A program draws them from a counter in global memory, and finds what one stands for by walking on from its last one, 32
sequences at a time, a lane each.

    drawn  [0] jobs drawn beyond every program's first, [APART] items of the means drawn (hstu_bsa_hopper_means), and
           from [2 APART] on what of these is made
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attnbench.kernels.hopper import barriers
from attnbench.kernels.hstu_bsa_hopper_walk import LANES, add
from attnbench.kernels.hstu_bsa_tiles import complete_seen, near_begin, standing
from attnbench.kernels.hstu_dense_tiles import sequence


@gluon.jit
@no_type_check
def through_of(offsets_ptr, base, batch, heads, ROWS: gl.constexpr, ROUND: gl.constexpr):
    """Numbers of the sequences from `base` on, up to and with each: for each head (rows + ROUND) // ROWS."""
    number = base + gl.arange(0, LANES, gl.BlockedLayout([1], [32], [1], [0]))
    begin = gl.load(offsets_ptr + number, mask=number < batch, other=0)
    end = gl.load(offsets_ptr + number + 1, mask=number < batch, other=0)
    many = ((end - begin).to(gl.int32) + ROUND) // ROWS * heads
    return gl.associative_scan(gl.where(number < batch, many, 0), 0, add)


@gluon.jit
@no_type_check
def begin(offsets_ptr, batch, heads, ROWS: gl.constexpr, ROUND: gl.constexpr):
    """Where `seek` starts: the sequence of the first lane, numbers of those before it, and `through_of` it."""
    none = gl.to_tensor(0)
    return none, none, through_of(offsets_ptr, none, batch, heads, ROWS, ROUND)


@gluon.jit
@no_type_check
def seek(number, at, offsets_ptr, batch, heads, ROWS: gl.constexpr, ROUND: gl.constexpr):
    """Walk to a number, which is no lower than the last one.

    Returns:
        Where that is; the sequence, `batch` or above behind the last; and the number within the sequence.
    """
    base, before, through = at
    total = gl.max(through, 0)
    while (number >= before + total) & (base < batch):
        before += total
        base += LANES
        through = through_of(offsets_ptr, base, batch, heads, ROWS, ROUND)
        total = gl.max(through, 0)
    inside = number - before
    passed = through <= inside
    lane = gl.sum(passed.to(gl.int32), 0)
    inside -= gl.max(gl.where(passed, through, 0), 0)
    return (base, before, through), base + lane, inside


@gluon.jit
@no_type_check
def numbers_before(sequence, at, offsets_ptr, batch, heads, ROWS: gl.constexpr, ROUND: gl.constexpr):
    """Walk to a sequence, which is no lower than the last one; where that is, and the numbers of those before it."""
    base, before, through = at
    while base + LANES <= sequence:
        before += gl.max(through, 0)
        base += LANES
        through = through_of(offsets_ptr, base, batch, heads, ROWS, ROUND)
    lanes = gl.arange(0, LANES, gl.BlockedLayout([1], [32], [1], [0]))
    return (base, before, through), before + gl.max(gl.where(base + lanes < sequence, through, 0), 0)


@gluon.jit
@no_type_check
def job_of(number, place, problem, HAS_CACHE: gl.constexpr, BLOCK_M: gl.constexpr, FORWARD: gl.constexpr):
    """Which rows of which head a job is about: those from `start` of a sequence.

    Args:
        number: of the sequence.
        place: of the job in it.
        problem: where sequences lie, heads, sequences.
        HAS_CACHE: queries are the last rows of their sequence.
        BLOCK_M: rows of a job.
        FORWARD: the first rows come first; else the last, whose jobs are the longest.

    Returns:
        The first key, and what is told of a job: head, first query, keys, where the first query stands, queries, start.
    """
    offsets_ptr, offsets_q_ptr, heads, _batch = problem
    tile = place // heads
    head = place - tile * heads
    key_start, query_start, keys, first_query, _prefix, _seen = sequence(
        offsets_ptr, offsets_q_ptr, offsets_ptr, number, 0, False, False, HAS_CACHE)
    queries = keys - first_query
    if not FORWARD:
        tile = (queries + BLOCK_M - 1) // BLOCK_M - 1 - tile
    job = (head, query_start.to(gl.int32), keys, first_query, queries, tile * BLOCK_M)
    return key_start.to(gl.int32), job


@gluon.jit
@no_type_check
def notes_for(FIELDS: gl.constexpr, READERS: gl.constexpr):
    """A ring of notes, each of so many numbers, that one warp tells to so many partitions; before the warps part."""
    notes = gl.allocate_shared_memory(gl.int32, [2 * FIELDS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    return notes, barriers(2, 1), barriers(2, READERS)


@gluon.jit
@no_type_check
def tell_note(ring, turn, note):
    """Tell the turn-th note, a tuple of numbers, when all have read the one in its place."""
    notes, full, empty = ring
    FIELDS: gl.constexpr = notes.shape[0] // 2
    slot = turn % 2
    mbarrier.wait(empty.index(slot), (turn // 2 & 1) ^ 1)
    for i in gl.static_range(FIELDS):
        one = gl.full([1], 0, gl.int32, gl.BlockedLayout([1], [32], [1], [0])) + note[i]
        notes.index(slot * FIELDS + i).store(one)
    mbarrier.arrive(full.index(slot))


@gluon.jit
@no_type_check
def told_note(ring, turn, WARPS: gl.constexpr):
    """The turn-th note, when it has been told, to a partition of so many warps, who load and divide nothing."""
    notes, full, empty = ring
    FIELDS: gl.constexpr = notes.shape[0] // 2
    slot = turn % 2
    mbarrier.wait(full.index(slot), turn // 2 & 1)
    note = ()
    for i in gl.static_range(FIELDS):
        one = notes.index(slot * FIELDS + i).load(gl.BlockedLayout([1], [32], [WARPS], [0]))
        note = note + (gl.max(one, 0),)
    mbarrier.arrive(empty.index(slot))
    return note


@gluon.jit
@no_type_check
def tiles_of(first, last, keys, WINDOW: gl.constexpr, BLOCK_SIZE: gl.constexpr, BLOCKS: gl.constexpr):
    """Tiles that the rows at the positions [first, last] see: of means [0, end), of keys [near, behind).

    Of [0, whole) every row sees and ranks every block.
    """
    _position, _stand, local = standing(first, 0, keys, BLOCK_SIZE)
    visible = complete_seen(last, keys, BLOCK_SIZE)
    near = near_begin(first, keys, WINDOW, BLOCK_SIZE) // BLOCKS
    return local // BLOCKS, (visible + BLOCKS - 1) // BLOCKS, near, (last + BLOCKS) // BLOCKS
