"""Launch configuration of the selected branch for Hopper, its workspace, and what it does not support.

Can be imported without torch and Triton.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from attnbench.kernels.hstu.bsa.hopper.select_config import SHARED_BYTES, first_fault

if TYPE_CHECKING:
    from attnbench.kernels.hstu.bsa.plan import Shapes
    from attnbench.kernels.hstu.bsa.problem import BsaProblem

ROWS = 128
"Rows of a tile of the lists."
PAIRS = 32
"Most (sequence, head) pairs of a step."
PLACES = (3, 4)
"Steps that the ring of buffers holds, up to 64 dims and above, where an H200 was fastest; 2 took a quarter longer at 128."
APART = 32
"Distance between counters: each has an L2 cache line of its own, because all programs add to them and poll them."


class AttendMeta(NamedTuple):
    """Compile-time constants of `hstu_bsa_hopper_attend`."""

    ATTN_DIM: int
    LINEAR_DIM: int
    BLOCK_D: int
    BLOCK_SIZE: int
    OTHERS: int
    "blocks of a query except the local one"
    GATES: int
    HAS_TARGETS: bool
    HAS_CACHE: bool
    SHARED: bool
    "whether all heads share one list"
    TANH: bool
    "whether SiLU uses the tanh instruction"
    KEEP: bool
    "whether the L2 evicts partial rows last"
    STAGES: int
    JOB_ROWS: int
    "queries of a job"
    JOBS: int
    "slots of jobs"
    SUM_REGISTERS: int
    "registers of a thread of `combine`"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttendConfig:
    """Launch configuration."""

    stages: int = 4
    "pipeline stages: tiles in flight"
    job_rows: int = 32
    "queries whose partial rows are summed at a time: 16, 32 or 64; a thread loads all of them at once"
    jobs: int = 4
    "slots of jobs: one that is processed, and those published ahead"
    step_mib: float = 6.0
    "partial rows of a step, which is a number of consecutive (sequence, head) pairs, at least one"
    ring_mib: float = 24.0
    "size of the ring of partial rows, at least two steps: less stays in the L2, more avoids waits"
    keep: bool = False
    "the L2 evicts partial rows last, also after the call"
    programs: int = 1
    "resident programs of an SM"

    def group(self, problem: BsaProblem) -> int:
        """Pairs of a step."""
        return max(1, min(PAIRS, problem.units, int(self.step_mib * 2**20) // max(1, problem.pair_bytes)))

    def steps(self, problem: BsaProblem) -> int:
        """Steps of a call."""
        return -(-problem.units // self.group(problem))

    def ring(self, problem: BsaProblem) -> int:
        """Steps that the ring of partial rows holds."""
        each = max(1, self.group(problem) * problem.pair_bytes)
        return min(max(2, int(self.ring_mib * 2**20) // each), max(1, self.steps(problem)))

    def shared_bytes(self, block_d: int, block_v: int, block_size: int) -> int:
        """Shared memory for tiles of 16-bit elements with so many columns, and for slots and barriers."""
        tile = 2 * (ROWS * block_d + block_size * (block_d + block_v)) + 16 * ROWS + 256
        # Partial rows are transposed from product layout to rows in the query buffer, or in a buffer of their own.
        turned = 2 * ROWS * block_v if block_v != block_d else 0
        return self.stages * tile + turned + self.jobs * (20 * self.job_rows + 256)


def default_attend(problem: BsaProblem) -> AttendConfig:
    """The default for a problem, chosen by reading compiled code and from a few measurements on an H200."""
    p = problem
    stages = _most_stages(p.block_d, p.block_v, p.block_size)
    config = AttendConfig(stages=stages, job_rows=32 if p.others <= 3 else 16)
    return replace(config, ring_mib=PLACES[p.block_v > 64] * config.group(p) * p.pair_bytes / 2**20)


@cache
def _most_stages(block_d: int, block_v: int, block_size: int) -> int:
    """Of 2, 4 and 6 the most that fit into shared memory; 2 where none does."""
    found = [
        stages
        for stages in (2, 4, 6)
        if AttendConfig(stages=stages).shared_bytes(block_d, block_v, block_size) <= SHARED_BYTES
    ]
    return max(found, default=2)


def attend_shapes(problem: BsaProblem, config: AttendConfig) -> Shapes:
    """Workspace of `attend_hopper` beyond the lists of tiles of ROWS entries."""
    import torch

    p = problem
    return {
        "partial": ((config.ring(p) * config.group(p), p.slot_rows, p.linear_dim), p.dtype),
        "progress": (((2 + 2 * config.steps(p)) * APART,), torch.int32),
    }


def attend_fault(problem: BsaProblem, config: AttendConfig, *, capability: tuple[int, int] | None) -> str | None:
    """Why `attend_hopper` cannot run this way, as words after its name; None if it can.

    Args:
        problem: the call.
        config: launch configuration.
        capability: of the card; None: not checked.
    """
    p = problem
    return first_fault(
        p,
        capability,
        config.shared_bytes(p.block_d, p.block_v, p.block_size),
        (
            (p.others < 1, "is not used with one block per query; at least 2"),
            (p.block_size not in (16, 32, 64), f"has tiles of a block's keys, not of {p.block_size}; 16, 32 or 64"),
            (config.job_rows not in (16, 32, 64), f"adds up 16, 32 or 64 queries at a time, not {config.job_rows}"),
            (config.stages < 2, f"has {config.stages} tiles in flight; at least 2"),
            (min(config.jobs, config.programs) < 1, "has no job or program; at least 1"),
        ),
    )
