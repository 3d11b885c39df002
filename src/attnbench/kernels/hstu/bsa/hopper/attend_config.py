"""Launch configuration of the selected branch for Hopper, what workspace it needs, and what it cannot run.

Imports without torch and Triton.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from attnbench.kernels.hstu.bsa.hopper.select_config import SHARED_BYTES, first_fault

if TYPE_CHECKING:
    from attnbench.kernels.hstu.bsa.plan import Shapes
    from attnbench.kernels.hstu.bsa.problem import BsaProblem

ROWS = 128
"Rows of a tile of the lists."
PAIRS = 32
"Pairs of a step, at most."
PLACES = (3, 4)
"Steps that have places, to 64 dims and over them, where an H200 was fastest; with 2 it took a quarter longer at 128."
APART = 32
"Between counters, each of which has a line of the L2 of its own: all programs add to them and look at them."


class AttendMeta(NamedTuple):
    """What `hstu_bsa_hopper_attend` is compiled for."""

    ATTN_DIM: int
    LINEAR_DIM: int
    BLOCK_D: int
    BLOCK_SIZE: int
    OTHERS: int
    "blocks of a query but the local one"
    GATES: int
    HAS_TARGETS: bool
    HAS_CACHE: bool
    SHARED: bool
    "one list for all heads"
    TANH: bool
    "SiLU by the tanh instruction"
    KEEP: bool
    "partial rows are the last that the L2 gives up"
    STAGES: int
    JOB_ROWS: int
    "queries of a job"
    JOBS: int
    "slots of jobs"
    SUM_REGISTERS: int
    "of a thread that adds up"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttendConfig:
    """Launch configuration."""

    stages: int = 4
    "tiles in flight"
    job_rows: int = 32
    "queries whose partial rows are added up at a time: 16, 32 or 64; a thread loads all of it at once"
    jobs: int = 4
    "of them handed over ahead, and one that is worked on"
    step_mib: float = 6.0
    "partial rows of a step, pairs that follow one another, but one pair at least"
    ring_mib: float = 24.0
    "partial rows that have places, but of two steps at least: fewer stay in the L2, more let nobody wait"
    keep: bool = False
    "partial rows are the last that the L2 gives up, after the call too"
    programs: int = 1
    "an SM"

    def group(self, problem: BsaProblem) -> int:
        """Pairs of a step."""
        return max(1, min(PAIRS, problem.units, int(self.step_mib * 2**20) // max(1, _pair_bytes(problem))))

    def steps(self, problem: BsaProblem) -> int:
        """Steps of a call."""
        return -(-problem.units // self.group(problem))

    def ring(self, problem: BsaProblem) -> int:
        """Steps that have a place for their partial rows."""
        each = max(1, self.group(problem) * _pair_bytes(problem))
        return min(max(2, int(self.ring_mib * 2**20) // each), max(1, self.steps(problem)))

    def shared_bytes(self, block_d: int, block_v: int, block_size: int) -> int:
        """Shared memory for tiles of so many columns of 16-bit numbers, and for what goes with them."""
        tile = 2 * (ROWS * block_d + block_size * (block_d + block_v)) + 16 * ROWS + 256
        # Partial rows turn from registers of a product to rows where the queries were, or beside them.
        turned = 2 * ROWS * block_v if block_v != block_d else 0
        return self.stages * tile + turned + self.jobs * (20 * self.job_rows + 256)


def default_attend(problem: BsaProblem) -> AttendConfig:
    """The configuration for a problem, chosen by reading compiled code and a few trials on an H200."""
    p = problem
    fits = [
        stages
        for stages in (2, 4, 6)
        if AttendConfig(stages=stages).shared_bytes(p.block_d, p.block_v, p.block_size) <= SHARED_BYTES
    ]
    config = AttendConfig(stages=max(fits, default=2), job_rows=32 if p.others <= 3 else 16)
    return replace(config, ring_mib=PLACES[p.block_v > 64] * config.group(p) * _pair_bytes(p) / 2**20)


def attend_shapes(problem: BsaProblem, config: AttendConfig) -> Shapes:
    """Workspace that `attend_hopper` needs beside lists of tiles of ROWS entries."""
    import torch

    p = problem
    return {
        "partial": ((config.ring(p) * config.group(p), p.slot_rows, p.linear_dim), p.dtype),
        "progress": (((2 + 2 * config.steps(p)) * APART,), torch.int32),
    }


def attend_fault(problem: BsaProblem, config: AttendConfig, *, capability: tuple[int, int] | None) -> str | None:
    """Why `attend_hopper` cannot run so, as words behind its name; None where it can.

    Args:
        problem: the call.
        config: launch configuration.
        capability: of the card; None: not asked.
    """
    p = problem
    return first_fault(
        p,
        capability,
        config.shared_bytes(p.block_d, p.block_v, p.block_size),
        (
            (p.others < 1, "has nothing to do for one block a query; at least 2"),
            (p.block_size not in (16, 32, 64), f"has tiles of a block's keys, not of {p.block_size}; 16, 32 or 64"),
            (config.job_rows not in (16, 32, 64), f"adds up 16, 32 or 64 queries at a time, not {config.job_rows}"),
            (config.stages < 2, f"has {config.stages} tiles in flight; at least 2"),
            (min(config.jobs, config.programs) < 1, "has no job or program; at least 1"),
        ),
    )


def _pair_bytes(problem: BsaProblem) -> int:
    return problem.slot_rows * problem.linear_dim * problem.item
