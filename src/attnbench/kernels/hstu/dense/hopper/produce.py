# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The producer warp of an HSTU forward for Hopper: fetches work items, publishes them and loads their tiles.

A `source` says where keys and values are: rows of a tensor here, pages of a pool in `hstu.paged.hopper`.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language.extra.cuda import gdc_wait

from attnbench.kernels.hstu.dense.hopper.work import work_at
from attnbench.kernels.shared.hopper import Argument, Rings, WorkQueue, aggregate, next_work

AHEAD = gl.constexpr(4)
"The next work item is fetched when this many tiles are left to load."


@aggregate
class Rows:
    """A source of keys and values in packed rows."""

    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor

    @gluon.jit
    @no_type_check
    def keys_of(self, _number, start, work, head):
        """Keys and values of a sequence that begins at row `start`."""
        return SequenceRows(k_desc=self.k_desc, v_desc=self.v_desc, start=start, keys=work.keys, head=head)


@aggregate
class SequenceRows:
    """Keys and values of one sequence and head."""

    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    start: gl.tensor
    keys: gl.tensor
    head: gl.tensor

    @gluon.jit
    @no_type_check
    def fill_keys(self, ring, count, at):
        """Load the tile from key `at`, once a stage is free."""
        ring.fill(count, self.k_desc, self.start, self.keys, at, self.head)

    @gluon.jit
    @no_type_check
    def fill_values(self, ring, count, at):
        """The same for values."""
        ring.fill(count, self.v_desc, self.start, self.keys, at, self.head)


@aggregate
class Producer:
    """Arguments of the producer warp."""

    q_desc: tma.tensor_descriptor
    rings: Rings
    queue: WorkQueue
    counter_ptr: Argument
    "counter of the dynamic tile scheduler"
    parts: Argument
    "parts that the keys of a query tile are split into"
    BLOCK_N: gl.constexpr
    GROUPS: gl.constexpr
    DYNAMIC: gl.constexpr
    "whether programs fetch work items; otherwise each has one"
    SPLIT: gl.constexpr


@gluon.jit
@no_type_check
def load_work(producer, mask, work, source, head, count, done):
    """Load a work item's tiles.  Returns the new tile count, and the next work item if it was fetched here, else -1."""
    rings = producer.rings
    BLOCK_N: gl.constexpr = producer.BLOCK_N
    Q_AHEAD: gl.constexpr = rings.q[0].STAGES > 1
    total = work.tiles.masked + work.tiles.split - work.tiles.whole
    at = work.key_tile(0, mask) * BLOCK_N
    following = -1
    # With one query stage, queries are loaded after the first keys: the previous output may first have to leave the buffer.
    if not Q_AHEAD and total > 0:
        source.fill_keys(rings.k, count, at)
    for which in gl.static_range(producer.GROUPS):
        first, queries = work.rows_of(done, which, producer.GROUPS)
        rings.q[which].fill(done, producer.q_desc, work.query_start, queries, first, head)
    if Q_AHEAD and total > 0:
        source.fill_keys(rings.k, count, at)
    # Keys are loaded one tile before values, as they are read: their stage is free earlier.
    for index in range(total):
        # Fetched here, because the answer arrives while the last tiles wait for stages.  Fetched earlier, the next item would
        # wait for this program, if its item is long, while others are idle.
        if producer.DYNAMIC and index == gl.maximum(total - AHEAD, 0):
            following = next_work(producer.counter_ptr)
        after = at
        if index + 1 < total:
            after = work.key_tile(index + 1, mask) * BLOCK_N
            source.fill_keys(rings.k, count + 1, after)
        source.fill_values(rings.v, count, at)
        at = after
        count += 1
    return count, following


@gluon.jit
@no_type_check
def produce(producer, problem, source):
    """The producer warp: fetch a work item, publish it and load its tiles, until there are no more."""
    items = problem.pairs * problem.tiles
    if producer.SPLIT:
        items *= producer.parts
        # Launched before the previous kernel ends: reads of what it wrote, and all writes, come after this wait.
        gdc_wait()
    at = gl.program_id(0)
    count = 0
    done = 0
    while at < items:
        found = work_at(at, problem, producer.parts, producer.GROUPS, producer.BLOCK_N, producer.SPLIT)
        work, head = found.work, found.head
        following = -1
        if found.has_rows:
            work.publish(producer.queue, done)
            of_keys = source.keys_of(found.sequence, found.key_start, work, head)
            count, following = load_work(producer, problem.mask, work, of_keys, head, count, done)
            done += 1
        if not producer.DYNAMIC:
            following = items
        elif following < 0:  # a work item without rows or without keys
            following = next_work(producer.counter_ptr)
        at = following
    producer.queue.finish(done)
