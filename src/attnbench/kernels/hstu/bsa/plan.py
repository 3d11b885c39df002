"""Sizes of a block-sparse HSTU call: launch configuration, grids, and workspace.

Workspace beyond q, k, v, out and the selected blocks is of three kinds: the means of the blocks, the lists with the
buffers that sort them, and partial rows.  The first two grow with the tokens; the last is a buffer for the (sequence,
head) pairs in flight, whose number depends on the card and not on the batch.  Nothing grows with queries times keys or
with queries times blocks.  docs/hstu.md has the formula, and a test compares it with what is allocated.

Can be imported without Triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from attnbench.kernels.hstu.bsa.hopper.attend_config import ROWS as HOPPER_ROWS
from attnbench.kernels.hstu.bsa.hopper.attend_config import AttendConfig, attend_fault, attend_shapes, default_attend
from attnbench.kernels.hstu.bsa.hopper.select_config import SelectConfig, default_select, select_fault
from attnbench.kernels.hstu.bsa.problem import BsaProblem

SCHEDULES = ("ticket", "passes")


@dataclass(frozen=True, kw_only=True, slots=True)
class BsaConfig:
    """Launch configuration.  The defaults were chosen by reading compiled code and from a few measurements on an H200."""

    select: SelectConfig | None = None
    "the Hopper kernel that selects; None: the portable one, with the fields `select_...`"
    attend: AttendConfig | None = None
    "the Hopper kernel that attends; None: the portable one, with the fields below"
    schedule: str = "ticket"
    "how partial rows and their sums are scheduled: ticket, or passes (`portable.attend`)"
    pool_rows: int = 16
    "keys of a block that the pool kernel adds at a time"
    pool_warps: int = 1
    select_rows: int = 64
    "queries of a program of the compressed branch"
    select_blocks: int = 32
    "blocks ranked at a time"
    select_warps: int = 4
    select_stages: int = 2
    select_registers: int | None = None
    "limit of registers per thread there, to fit more programs on an SM; None: the compiler's choice"
    near_keys: int = 32
    "nearby keys at a time"
    chunk: int = 512
    "entries of a program of the kernels that sort the lists"
    order_chunk: int = 256
    "entries of a piece that one program sorts, for a backward; a power of two"
    order_warps: int = 2
    list_warps: int = 4
    attend_rows: int = 64
    "queries of a tile of the selected branch"
    attend_warps: int = 4
    attend_registers: int | None = None
    "as `select_registers`"
    tiles_each: int = 4
    "tiles that a program of the selected branch, or of the sums, processes one after another"
    combine_rows: int = 32
    "queries whose partial rows are summed at a time"
    programs_ahead: int = 768
    "programs between those of a pair's partial rows and those of their sums: slightly more than a card runs at a time"
    spare_pairs: int = 1
    "pairs whose partial rows have a buffer beyond the least number: fewer stay in the L2, more avoid waits"
    pass_mib: int = 256
    "limit of the partial rows of a pass, which has at least one pair; also for the backward"
    means_rows: int = 32
    "queries at a time in the backward of the means"
    means_blocks: int = 64
    "blocks of a program there"
    means_warps: int = 4
    means_stages: int = 4
    "pipeline stages of the loads there: with 2 none overlaps with a product, each more loads one tile further ahead"
    keys_rows: int = 64
    "queries at a time in the backward of keys and values"
    keys_warps: int = 4
    keys_stages: int = 3
    "pipeline stages there: 3 load the entries of a list one tile before its queries, 5 also these before their products"
    keys_registers: int | None = None
    "as `select_registers`"
    rows_rows: int = 64
    "queries of a program of the backward of queries"
    rows_blocks: int = 32
    "blocks at a time there"
    rows_warps: int = 4
    rows_stages: int = 3
    rows_registers: int | None = None
    "as `select_registers`"
    slot_stages: int = 4
    "there, the partial rows of one slot fewer are loaded ahead"
    silu: str = "tanh"
    "tanh: one instruction of NVIDIA cards; exp: by an exponential, on any card"

    @property
    def list_rows(self) -> int:
        """Entries of a tile of the lists."""
        return HOPPER_ROWS if self.attend else self.attend_rows


def default_config(problem: BsaProblem, capability: tuple[int, int], *, rows: bool = False) -> BsaConfig:
    """The default configuration for a problem.

    Args:
        problem: the call.
        capability: of the card; (0, 0) is the interpreter, which has no inline assembly.
        rows: whether `hopper.is_rows` accepts q, k and v: then the Hopper kernels are used where they can run.
    """
    values: dict[str, Any] = {}
    if capability == (0, 0) or problem.dtype != torch.bfloat16:
        # tanh.approx is off by 2**-11, half a rounding step of fp16: too much of its error budget.
        values["silu"] = "exp"
    size = max(problem.attn_dim, problem.linear_dim)
    if problem.dtype == torch.float32:
        # fp32 products do not run on the tensor cores and hold their operands in registers: small tiles.
        values |= {
            "select_rows": 32,
            "select_blocks": 32,
            "attend_rows": 32,
            "attend_warps": 8,
            "near_keys": 16,
            "select_warps": 8,
        }
    elif size > 128:
        values |= {"select_warps": 8, "attend_warps": 8}
    elif size <= 64:
        values |= {"select_blocks": 64, "attend_registers": 96}
    elif capability >= (9, 0) and problem.others <= 3 and not problem.pairs:
        # Three programs fit on an SM instead of two, without spills.
        values["select_registers"] = 168
    if rows:
        select, attend = default_select(problem), default_attend(problem)
        if select_fault(problem, select, capability=capability) is None:
            values["select"] = select
        if attend_fault(problem, attend, capability=capability) is None:
            values["attend"] = attend
    return BsaConfig(**values, **_backward_fields(problem, capability, size))


def _backward_fields(problem: BsaProblem, capability: tuple[int, int], size: int) -> dict[str, Any]:
    """Fields of the backward for this card: those without spills, for all combinations of gates and branches."""
    if problem.dtype == torch.float32:
        return {
            "means_rows": 16,
            "means_blocks": 16,
            "means_stages": 1,
            "keys_rows": 16,
            "keys_warps": 8,
            "rows_rows": 16,
            "rows_blocks": 16,
            "rows_warps": 8,
            "rows_stages": 1,
            "slot_stages": 1,
        }
    values: dict[str, Any] = {}
    if size > 128:
        values |= {
            "means_rows": 16,
            "means_warps": 8,
            "means_stages": 2,
            "keys_rows": 32,
            "keys_warps": 8,
            "rows_rows": 32,
            "rows_warps": 8,
            "rows_stages": 2,
        }
    elif size <= 64:
        values["keys_rows"] = 32
        if capability >= (9, 0) and not problem.local_window:
            # Four and three programs fit on an SM.
            values |= {"keys_registers": 128, "rows_registers": 168}
    elif problem.block_size > 32 or capability < (9, 0):
        values |= {"keys_rows": 32, "keys_warps": 8}
    elif problem.gates:
        values |= {"keys_rows": 32, "keys_stages": 5}
    if capability < (9, 0) and size > 64:
        values |= {"keys_rows": 16, "keys_warps": 4, "rows_warps": 8, "means_blocks": 32}
    if problem.has_targets:
        # A target's own key and value are two more tiles.
        values |= {"rows_rows": 32, "rows_warps": 8} if size > 64 else {"rows_warps": 8, "rows_registers": None}
    return values


def changed_config(config: BsaConfig, problem: BsaProblem, changes: Mapping[str, Any]) -> BsaConfig:
    """A configuration with some fields replaced.

    Args:
        config: the configuration.
        problem: the call, for kernels that the configuration has no fields of yet.
        changes: fields by name; for `select` and `attend` a mapping of their fields.

    Raises:
        TypeError: there is no such field.
    """
    whole: dict[str, Any] = {
        "select": config.select or default_select(problem),
        "attend": config.attend or default_attend(problem),
    }
    values: dict[str, Any] = {
        name: replace(whole[name], **value) if isinstance(value, Mapping) else value for name, value in changes.items()
    }
    return replace(config, **values)


def config_fault(problem: BsaProblem, config: BsaConfig, *, capability: tuple[int, int]) -> str | None:
    """Why a Hopper kernel of a configuration cannot run, as words after its name; None if it can."""
    faults = {
        "select": config.select and select_fault(problem, config.select, capability=capability),
        "attend": config.attend and attend_fault(problem, config.attend, capability=capability),
    }
    return next((f"{name} {fault}" for name, fault in faults.items() if fault), None)


class Parts(NamedTuple):
    """How the selected branch of a (sequence, head) pair is divided among programs."""

    attend: int
    "programs for its tiles"
    combine: int
    "programs for its sums"
    span: int
    "queries of a program for sums"


def parts_of(problem: BsaProblem, config: BsaConfig) -> Parts:
    """The parts of each pair."""
    span = config.combine_rows * config.tiles_each
    return Parts(
        attend=-(-problem.attend_tiles(config.attend_rows) // config.tiles_each),
        combine=-(-problem.max_seqlen_q // span),
        span=span,
    )


class InFlight(NamedTuple):
    """(sequence, head) pairs in flight."""

    lag: int
    "pairs between an attend and its combine; 0 with passes"
    ring: int
    "pairs that have partial rows at a time; with passes those of a pass"


def in_flight(problem: BsaProblem, config: BsaConfig) -> InFlight:
    """How many pairs are in flight."""
    if config.attend:
        pairs = config.attend.group(problem)
        return InFlight(lag=pairs, ring=pairs * config.attend.ring(problem))
    if config.schedule == "ticket":
        lag = -(-config.programs_ahead // max(1, parts_of(problem, config).attend))
        lag = max(1, min(lag, problem.units))
        # The attend of a pair waits for the combine of the pair that used its buffer before, which must have a lower ticket.
        return InFlight(lag=lag, ring=max(1, min(lag + 1 + config.spare_pairs, problem.units)))
    return InFlight(lag=0, ring=pairs_of_pass(problem, problem.linear_dim, config))


def pairs_of_pass(problem: BsaProblem, dim: int, config: BsaConfig) -> int:
    """Pairs whose partial rows of this size fit into a pass."""
    each = problem.slot_rows * dim * problem.item
    return max(1, min(problem.units, config.pass_mib * 2**20 // max(1, each)))


Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Name to shape and dtype."""


def saved_shapes(problem: BsaProblem, config: BsaConfig) -> Shapes:
    """Workspace that the backward reads again: means and lists."""
    p, lists = problem, problem.list_heads
    shapes: Shapes = {
        "means_k": ((p.heads, p.mean_rows, p.attn_dim), p.dtype),
        "means_v": ((p.heads, p.mean_rows, p.linear_dim), p.dtype),
    }
    if p.others:
        shapes |= {"entries": ((lists, p.entry_rows), torch.int32), "starts": ((lists, p.count_rows), torch.int32)}
    return shapes


def forward_shapes(problem: BsaProblem, config: BsaConfig) -> Shapes:
    """Workspace of the forward alone: buffers that sort the lists, and partial rows."""
    p, lists = problem, problem.list_heads
    if not p.others:
        return {}
    shapes: Shapes = {
        "ranks": ((lists, p.entry_rows), torch.int32),
        "counts": ((lists, p.count_rows), torch.int32),
        "tiles": ((lists, p.tile_rows(config.list_rows), 3), torch.int32),
        "num_tiles": ((p.batch * lists,), torch.int32),
    }
    if config.attend:
        return shapes | attend_shapes(p, config.attend)
    shapes["partial"] = ((in_flight(p, config).ring, p.slot_rows, p.linear_dim), p.dtype)
    if config.schedule == "ticket":
        shapes["progress"] = ((1 + 2 * p.units,), torch.int32)
    return shapes


def backward_shapes(problem: BsaProblem, config: BsaConfig) -> Shapes:
    """Workspace of the backward: gradients of the means, partial rows of dq and of the gates, sorted lists."""
    p = problem
    shapes: Shapes = {
        "dmeans_k": ((p.heads, p.mean_rows, p.attn_dim), torch.float32),
        "dmeans_v": ((p.heads, p.mean_rows, p.linear_dim), torch.float32),
    }
    if p.others:
        pairs = pairs_of_pass(p, p.attn_dim, config)
        shapes |= {
            "partial_dq": ((pairs, p.slot_rows, p.attn_dim), p.dtype),
            "partial_dgate": ((pairs, p.slot_rows), torch.float32),
            "pieces": ((p.list_heads, p.entry_rows), torch.int32),
            "ordered": ((p.list_heads, p.entry_rows), torch.int32),
        }
    return shapes


def bytes_of(shapes: Shapes) -> int:
    """Bytes of all of them."""
    total = 0
    for shape, dtype in shapes.values():
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        total += size
    return total
