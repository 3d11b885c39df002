"""Launch configuration of `select` of block-sparse HSTU for Hopper, and what the Hopper kernels do not support.

Can be imported without torch and Triton.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from attnbench.kernels.hstu.bsa.problem import BsaProblem

SHARED_BYTES = 227 * 1024 - 1024
"Shared memory of a program on sm_90 (CUDA programming guide, compute capabilities), minus room for barriers."
REGISTERS = {2: 240, 3: 160}
"Registers of each consumer thread, by the number of consumer warpgroups."
HELD = {2: 176, 3: 112}
"""Of these, the registers that sums, scores and weights may take: with more, masks and lists spill in every tile, and
products wait for one another."""


class SelectMeta(NamedTuple):
    """Compile-time constants of `hstu_bsa_hopper_select`."""

    HAS_CACHE: bool
    WINDOW: int
    GATES: int
    BLOCK_SIZE: int
    COUNTS: int
    "blocks of a query, the local one included"
    BITS: int
    "bits of a key that hold the block number"
    APPROXIMATE: bool
    "whether SiLU uses the tanh instruction"
    BESIDE: bool
    "whether blocks are ranked while the value product runs, otherwise before it is issued"
    BLOCKS: int
    "means or nearby keys of a tile"
    BLOCK_V: int
    GROUPS: int
    "consumer warpgroups"
    MINE: int
    "stripes of a warpgroup"
    STAGES: int
    REGISTERS: int
    "registers of a thread of all consumer warpgroups except the first"


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectConfig:
    """Launch configuration."""

    groups: int = 3
    "consumer warpgroups of a program: 2 or 3"
    rows: int = 64
    "queries of a warpgroup: 64, or 128 as two stripes, which share the tiles that the warpgroup waits for"
    blocks: int = 32
    "means or nearby keys of a tile: 32, 64 or 128"
    stages: int = 8
    "pipeline stages: tiles of keys (means), and as many of values, in flight"
    beside: bool = True
    "rank blocks while the value product runs, otherwise before it is issued"
    jobs: int | None = None
    "work items of a program; None: one program per SM, each with an equal share"

    def shared_bytes(self, block_d: int, block_v: int) -> int:
        """Shared memory for tiles of 16-bit elements with so many columns, without barriers."""
        outs = block_v if block_v != block_d else 0
        return 2 * (self.groups * self.rows * (2 * block_d + outs) + self.stages * self.blocks * (block_d + block_v))

    def held(self, block_v: int) -> int:
        """Registers of a thread for the sums, scores and weights with such values."""
        return self.rows * (2 * block_v + 3 * self.blocks) // 256

    def programs(self, jobs: int, count: int) -> int:
        """Programs for so many work items on a card with `count` SMs."""
        return min(jobs, count) if self.jobs is None else -(-jobs // self.jobs)


def select_fault(problem: BsaProblem, config: SelectConfig, *, capability: tuple[int, int] | None) -> str | None:
    """Why `select_hopper` cannot run this way, as words after its name; None if it can.

    Args:
        problem: the call.
        config: launch configuration.
        capability: of the card; None: not checked.
    """
    p = problem
    return first_fault(
        p,
        capability,
        config.shared_bytes(p.block_d, p.block_v),
        (
            (p.has_targets, "knows no targets"),
            (p.pairs, "knows no pairs"),
            (p.shared, "selects for each head alone"),
            (p.index_bits == 32, f"has ranking keys of 32 bits, too few for {p.max_seqlen // p.block_size} blocks"),
            (config.groups not in REGISTERS or config.rows not in (64, 128), "has 2 or 3 warpgroups of 64 or 128 rows"),
            (config.blocks not in (32, 64, 128), f"has tiles of {config.blocks} means; 32, 64 or 128"),
            (config.stages < 1, "has no stage; at least 1"),
            (
                config.held(p.block_v) > HELD.get(config.groups, 0),
                f"has too few registers for {config.rows}x{config.blocks} tiles and {p.linear_dim} dims; smaller ones",
            ),
        ),
    )


def first_fault(
    problem: BsaProblem, capability: tuple[int, int] | None, shared: int, own: Iterable[tuple[bool, str]]
) -> str | None:
    """The first reason why a Hopper kernel cannot run, general or its own; None if there is none.

    Args:
        problem: the call.
        capability: of the card; None: not checked.
        shared: bytes of shared memory of a program.
        own: conditions of the kernel: whether something is wrong, and the words for it.
    """
    dims = (problem.attn_dim, problem.linear_dim)
    odd = [dim for dim in dims if dim * problem.item % 16]
    of_all = (
        (capability not in ((9, 0), None), f"is for sm_90 alone, not sm_{''.join(map(str, capability or ()))}"),
        (problem.item != 2, "needs 16-bit inputs; bf16 or fp16"),
        (max(dims) > 128, f"does not support {max(dims)} dims; at most 128"),
        (bool(odd), f"needs rows of multiples of 16 bytes, not rows of {odd and odd[0]} dims"),
    )
    too_much = (shared > SHARED_BYTES, f"takes {shared // 1024} KiB of shared memory; at most {SHARED_BYTES // 1024}")
    for wrong, said in (*of_all, *own, too_much):
        if wrong:
            return said
    return None


def default_select(problem: BsaProblem) -> SelectConfig:
    """The default for a problem, from a few configurations measured on an H200 at 8192 rows: others took 4 to 40 % longer."""
    return SelectConfig(stages=8 if max(problem.attn_dim, problem.linear_dim) > 64 else 16)
