# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""What the dense HSTU kernels for Hopper share: the problem, the mask, and the key tile of a backward."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attnbench.kernels.hstu.tiles import first_sum, rows_of_keys, sees, sequence
from attnbench.kernels.shared.hopper import ROWS, Argument, Ring, aggregate
from attnbench.kernels.shared.rows import section_of

HIDDEN = -1e4
"A score α s / 2 whose SiLU and slope are 0, with the tanh instruction and with an exponential."

LEAST_ALPHA = 1e-30
"Below it no number s makes α s HIDDEN; with α = 0 all gradients are 0, hidden or not."


@aggregate
class Mask:
    """The window, and which masks there are; targets and the prefix are in the bounds of a sequence."""

    window: Argument
    CAUSAL: gl.constexpr
    HAS_PREFIX: gl.constexpr
    HAS_TARGETS: gl.constexpr
    HAS_WINDOW: gl.constexpr


@aggregate
class GridProblem:
    """Launch arguments that describe the grid of work."""

    sequences: gl.tuple
    "`hstu.arguments.Sequences`"
    contextual_len: Argument
    mask: Mask
    heads: Argument
    pairs: Argument
    "(sequence, head) pairs"
    tiles: Argument
    "tiles of the longest sequence"
    group: Argument
    "pairs of a section (`rows.section_of`)"
    HAS_CACHE: gl.constexpr

    @gluon.jit
    @no_type_check
    def sequence_of(self, number):
        """The `Bounds` of the number-th sequence."""
        return sequence(
            self.sequences, number, self.contextual_len, self.mask.HAS_PREFIX, self.mask.HAS_TARGETS, self.HAS_CACHE
        )


@aggregate
class KeyTile:
    """The key tile of a program of the backward, and the tiles of 64 queries that see it.

    Those are [0, front), of the prefix, and [begin, end); every query of [whole, split) sees every key.
    """

    head: gl.tensor
    key_start: gl.tensor
    "first key of the sequence in the packed tensors"
    query_start: gl.tensor
    padded: gl.tensor
    "the sequence's first row in sums of dQ in tiles (`hstu.tiles.first_sum`)"
    keys: gl.tensor
    "of the sequence"
    first_query: gl.tensor
    "position of query 0"
    prefix: gl.tensor
    seen: gl.tensor
    "rows before the targets"
    start: gl.tensor
    "the program's first key"
    front: gl.tensor
    begin: gl.tensor
    whole: gl.tensor
    split: gl.tensor
    end: gl.tensor

    @gluon.jit
    @no_type_check
    def steps(self):
        """How many tiles of queries see the keys."""
        return self.front + self.end - self.begin

    @gluon.jit
    @no_type_check
    def from_first_query(self):
        """The same tile with positions counted from the sequence's first query: `keys` is then its number of queries."""
        first = self.first_query
        return KeyTile(
            head=self.head,
            key_start=self.key_start,
            query_start=self.query_start,
            padded=self.padded,
            keys=self.keys - first,
            first_query=first - first,
            prefix=self.prefix - first,
            seen=self.seen - first,
            start=self.start - first,
            front=self.front,
            begin=self.begin,
            whole=self.whole,
            split=self.split,
            end=self.end,
        )

    @gluon.jit
    @no_type_check
    def query_tile(self, index, mask):
        """The index-th query tile that sees the keys."""
        tile = self.begin + index
        if mask.HAS_PREFIX:
            tile = gl.where(index < self.front, index, tile - self.front)
        return tile

    @gluon.jit
    @no_type_check
    def masked(self, scores, hidden, tile, offset, mask):
        """Scores [64 keys from this many past the first, 64 queries of a tile], masked ones `hidden`."""
        if (tile < self.whole) | (tile >= self.split):
            scores = hide(
                scores, hidden, self.start + offset, tile * ROWS, self.prefix, self.seen, mask, ROWS_DOWN=False
            )
        return scores


class BackwardMeta(NamedTuple):
    """Compile-time constants of `hstu_hopper_backward` and `hstu_hopper_backward_wide`."""

    CAUSAL: bool
    HAS_PREFIX: bool
    HAS_TARGETS: bool
    HAS_WINDOW: bool
    HAS_CACHE: bool
    STAGES: int
    APPROXIMATE: bool
    "whether SiLU uses the tanh instruction"
    LAG: bool
    "whether a step's dQ is computed in the next step"
    SUMS: str
    "`ColumnConfig.sums`"
    KEY_STAGES: int = 1
    "key tiles of a program in shared memory"


@aggregate
class BackwardRings:
    """The rings of a backward."""

    q: Ring
    k: Ring
    v: Ring
    dout: Ring


@aggregate
class BackwardProducer:
    """Arguments of the producer warp of a backward."""

    q_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    dout_desc: tma.tensor_descriptor
    rings: BackwardRings
    problem: GridProblem


@gluon.jit
@no_type_check
def key_tile_of(problem, BLOCK_N: gl.constexpr):
    """The tile of BLOCK_N keys of this program."""
    # The first keys are seen by most rows, so their tiles come first.
    tile, pair = section_of(gl.program_id(0), problem.tiles, problem.pairs, problem.group)
    number = pair // problem.heads
    head = pair - number * problem.heads
    return key_tile_at(problem.mask, problem.sequence_of(number), number, head, tile, BLOCK_N)


@gluon.jit
@no_type_check
def key_tile_at(mask, bounds, number, head, tile, BLOCK_N: gl.constexpr):
    """The tile-th tile of BLOCK_N keys of a sequence, the number-th, with these `Bounds`."""
    start = tile * BLOCK_N
    reach = rows_of_keys(
        first=start,
        last=gl.minimum(start + BLOCK_N, bounds.keys) - 1,
        rows=bounds.keys,
        prefix=bounds.prefix,
        seen=bounds.seen,
        window=mask.window,
        CAUSAL=mask.CAUSAL,
        HAS_PREFIX=mask.HAS_PREFIX,
        HAS_TARGETS=mask.HAS_TARGETS,
        HAS_WINDOW=mask.HAS_WINDOW,
    )
    front = 0
    if mask.HAS_PREFIX:
        front = gl.where(start < bounds.seen, (gl.maximum(bounds.prefix - bounds.first_query, 0) + ROWS - 1) // ROWS, 0)
    begin = gl.maximum(gl.maximum(reach.low - bounds.first_query, 0) // ROWS, front)
    end = gl.maximum((gl.maximum(reach.high - bounds.first_query, 0) + ROWS - 1) // ROWS, begin)
    whole = (gl.maximum(reach.all_low - bounds.first_query, 0) + ROWS - 1) // ROWS
    whole = gl.minimum(gl.maximum(whole, begin), end)
    # Queries past the last are loaded as zeros and add nothing: a partial last tile needs no mask.
    last = gl.where(reach.all_high == bounds.keys, end, gl.maximum(reach.all_high - bounds.first_query, 0) // ROWS)
    split = gl.minimum(gl.maximum(last, whole), end)
    return KeyTile(
        head=head,
        key_start=bounds.key_start.to(gl.int32),
        query_start=bounds.query_start.to(gl.int32),
        padded=first_sum(number, bounds.query_start).to(gl.int32),
        keys=bounds.keys,
        first_query=bounds.first_query,
        prefix=bounds.prefix,
        seen=bounds.seen,
        start=start,
        front=front,
        begin=begin,
        whole=whole,
        split=split,
        end=end,
    )


@gluon.jit
@no_type_check
def hide(scores, hidden, down, across, prefix, seen, mask, ROWS_DOWN: gl.constexpr):
    """Scores [64, n] with masked ones set to `hidden`; `down`, `across`: first row and key, swapped unless ROWS_DOWN."""
    columns = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))[None, :]
    # Positions relative to the first of eight columns, of which a thread has two: the rest of `columns` is then a
    # compile-time constant, where the compiler would otherwise keep a register for each column through the loop.
    own = columns & 7
    zero = across + own
    lines = down + gl.arange(0, ROWS, gl.SliceLayout(1, scores.type.layout))[:, None] - zero
    if mask.CAUSAL and ROWS_DOWN and not (mask.HAS_PREFIX or mask.HAS_TARGETS or mask.HAS_WINDOW):
        see = columns - own < gl.minimum(lines + 1, seen - zero)  # one comparison for each element, instead of two
    elif ROWS_DOWN:
        see = sees(
            rows=lines,
            keys=columns - own,
            prefix=prefix - zero,
            seen=seen - zero,
            window=mask.window,
            CAUSAL=mask.CAUSAL,
            HAS_PREFIX=mask.HAS_PREFIX,
            HAS_TARGETS=mask.HAS_TARGETS,
            HAS_WINDOW=mask.HAS_WINDOW,
        )
    else:
        see = sees(
            rows=columns - own,
            keys=lines,
            prefix=prefix - zero,
            seen=seen - zero,
            window=mask.window,
            CAUSAL=mask.CAUSAL,
            HAS_PREFIX=mask.HAS_PREFIX,
            HAS_TARGETS=mask.HAS_TARGETS,
            HAS_WINDOW=mask.HAS_WINDOW,
        )
    return gl.where(see, scores, hidden)
