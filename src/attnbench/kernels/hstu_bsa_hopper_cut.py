"""How `select` of block-sparse HSTU for Hopper is cut, and what it, or any kernel for Hopper here, cannot run.

Imports without triton.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from attnbench.kernels.hstu_bsa_plan import BsaProblem, Shapes

SHARED_BYTES = 227 * 1024 - 1024
"Shared memory of a program on sm_90 (CUDA programming guide, compute capabilities), less what barriers may take."
REGISTERS = {(2, 1): (240, 24), (3, 1): (160, 24), (2, 2): (104, 24)}
"Of each thread of so many warpgroups, and of the loader beside them, where so many programs share an SM."
POOLED = {(2, 1): (224, 56), (3, 1): (152, 56), (2, 2): (88, 56)}
"The same where the loader has warps beside it that make means."
SHARED_LAUNCH = 80
"Of each thread of a program that shares its SM, to begin with."
APART = 32
"Between counters, each of which has a line of the L2 of its own."
ITEM_ROWS = 128
"Keys of a head whose means are made together."
HELD = {(2, 1): 176, (3, 1): 112, (2, 2): 56}
"""Of these, what sums, scores and weights may take: with more, masks and lists are spilled in every tile, and products
wait for one another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectCut:
    """How the kernel is cut."""

    groups: int = 3
    "warpgroups of a program: 2 or 3"
    rows: int = 64
    "queries of a warpgroup: 64, or two stripes of as many, which share the tiles it waits for"
    blocks: int = 64
    "means, or keys nearby, of a tile: 32, 64 or 128"
    stages: int = 4
    "tiles of each kind in flight"
    joint: bool = False
    "the two warpgroups go step by step, and their code is there once: an SM's cache of it is small"
    sharing: int = 1
    "programs of joint warpgroups on an SM, which have its cache of code between them: 1 or 2"
    beside: bool = True
    "rank while the product with the values runs, or before it is issued"
    jobs: int | None = None
    "of a program, if each draws as many; None: a program an SM"
    pools: bool = False
    "the means are made beside it, by warps of its own; else they are there before"
    pool_stages: int = 2
    "blocks of keys and of values in flight for that"
    ahead_mib: float = 12.0
    """keys and values whose means may be made before a job that needs them is drawn: few are in the L2 still when they
    are read as keys nearby, many let nobody wait"""

    def shared_bytes(self, block_d: int, block_v: int, block_size: int) -> int:
        """Shared memory for tiles of so many columns of 16-bit numbers, up to a KiB of barriers beside it."""
        outs = block_v if block_v != block_d else 0
        queries, keys = self.groups * self.rows * (2 * block_d + outs), self.stages * self.blocks * (block_d + block_v)
        pools = 2 * self.pool_stages * block_size * max(block_d, block_v) if self.pools else 0
        # Barriers come to more than other kernels have.
        return 2 * (queries + keys + pools) + (640 if self.pools else 128)

    @property
    def warps(self) -> int:
        """Warps of a partition that selects."""
        return 8 if self.joint else 4

    def registers(self) -> tuple[int, int]:
        """Of each thread of its warpgroups, and of the warps beside them."""
        return (POOLED if self.pools else REGISTERS)[self.groups, self.sharing]

    def ahead(self, problem: BsaProblem) -> int:
        """Jobs before the first that needs an item, when it may be drawn."""
        each = self.rows * self.groups * (problem.attn_dim + problem.linear_dim) * problem.item
        return int(self.ahead_mib * 2**20) // each

    def held(self, block_v: int) -> int:
        """Registers of a thread for the sums, scores and weights of such values."""
        return self.rows * (2 * block_v + 3 * self.blocks) // 256

    def programs(self, jobs: int, count: int) -> int:
        """Programs for so many jobs on a card of `count` SMs."""
        return min(jobs, self.sharing * count) if self.jobs is None else -(-jobs // self.jobs)


def select_shapes(problem: BsaProblem, cut: SelectCut) -> Shapes:
    """Workspace that `select_hopper` needs beside means."""
    made = problem.keys // ITEM_ROWS + problem.batch if cut.pools else 0
    return {"drawn": ((2 * APART + made,), torch.int32)}


def select_fault(problem: BsaProblem, cut: SelectCut, *, capability: tuple[int, int] | None) -> str | None:
    """Why `select_hopper` cannot run so, as words behind its name; None where it can.

    Args:
        problem: the call.
        cut: of the kernel.
        capability: of the card; None: not asked.
    """
    p, kind = problem, (cut.groups, cut.sharing)
    # An SM keeps a KiB of each program's.
    shared = cut.sharing * (cut.shared_bytes(p.block_d, p.block_v, p.block_size) + 2048) - 2048
    return first_fault(p, capability, shared, (
        (p.has_targets, "knows no targets"),
        (p.pairs, "knows no pairs"),
        (p.shared, "selects for each head alone"),
        (p.index_bits == 32, f"ranks by 32 bits, too few for {p.max_seqlen // p.block_size} blocks"),
        (cut.groups not in (2, 3) or cut.rows not in (64, 128), "has 2 or 3 warpgroups of 64 or 128 rows"),
        (cut.blocks not in (32, 64, 128), f"has tiles of {cut.blocks} means; 32, 64 or 128"),
        (cut.joint and cut.groups != 2, f"joins two warpgroups, not {cut.groups}"),
        (cut.sharing != 1 and not (cut.joint and cut.sharing == 2),
         f"has no {cut.sharing} programs an SM; 1, or 2 of joint warpgroups"),
        (min(cut.stages, cut.pool_stages) < 1, "has no stage; at least 1"),
        (cut.ahead_mib < 0, f"cannot be {cut.ahead_mib} MiB ahead; 0 or more"),
        (cut.held(p.block_v) > HELD.get(kind, 0),
         f"has no registers for {cut.rows}x{cut.blocks} tiles and {p.linear_dim} dims; smaller ones"),
    ))


def first_fault(problem: BsaProblem, capability: tuple[int, int] | None, shared: int,
                own: Iterable[tuple[bool, str]]) -> str | None:
    """The first of what no kernel for Hopper here can run, and of what is a kernel's own; None where there is none.

    Args:
        problem: the call.
        capability: of the card; None: not asked.
        shared: bytes of shared memory that a program takes.
        own: whether something is wrong, and the words for it.
    """
    dims = (problem.attn_dim, problem.linear_dim)
    odd = [dim for dim in dims if dim * problem.item % 16]
    of_all = (
        (capability not in ((9, 0), None), f"is for sm_90 alone, not sm_{''.join(map(str, capability or ()))}"),
        (problem.dtype not in (torch.bfloat16, torch.float16), "multiplies 16-bit numbers; bf16 or fp16"),
        (max(dims) > 128, f"has no room for {max(dims)} dims; at most 128"),
        (bool(odd), f"reads 16 bytes at a time; rows of {odd and odd[0]} dims are no multiple of that"),
    )
    too_much = (shared > SHARED_BYTES, f"takes {shared // 1024} KiB of shared memory; at most {SHARED_BYTES // 1024}")
    return next((said for wrong, said in (*of_all, *own, too_much) if wrong), None)


def select_cut(problem: BsaProblem) -> SelectCut:
    """The cut for a problem, chosen by reading compiled code; no card has run it as it is.

    Of 128 dims the product of queries and means reads as much shared memory as it can: with tiles of 32 means the
    queries would be read twice as often.  Of 64 dims instructions are the most: narrow tiles waste fewer, and two
    stripes share what a job and a tile take, where sequences are long enough.  Long lists leave wide tiles no
    registers.
    """
    if max(problem.attn_dim, problem.linear_dim) > 64:
        return SelectCut() if problem.others <= 4 else SelectCut(blocks=32, stages=8)
    return SelectCut(blocks=32, stages=8, rows=128 if problem.max_seqlen_q >= 4096 and problem.others <= 4 else 64)
