"""One problem of self-attention over several devices: the function, its shape, and the number of ranks.

The problem itself is one of the workload `attention` (function softmax) or `hstu` (function hstu, dense, no targets,
alpha 1/sqrt(headdim), outputs divided by seqlen); this case holds the axes that both have, and `world`.

Imports without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from attnbench.errors import UsageError, refusal, unknown
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.hstu.case import HstuCase

SOFTMAX, HSTU = "softmax", "hstu"
FUNCTIONS = (SOFTMAX, HSTU)
MOST_RANKS = 64

_SAME: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CpCase:
    """A frozen problem, forward only.

    Raises:
        UsageError: the value of a field is not allowed; the message names the field.
    """

    world: int
    "ranks that share the problem, one per device"
    function: str = SOFTMAX
    batch: int
    seqlen: int
    nheads: int
    nheads_kv: int = _SAME
    "key and value heads, a divisor of nheads; default: nheads; for hstu always nheads"
    headdim: int
    causal: bool = False
    dtype: str = "fp16"
    lengths: str = "full"

    def __post_init__(self) -> None:
        if self.nheads_kv is None:
            object.__setattr__(self, "nheads_kv", self.nheads)
        if type(self.world) is not int or not 1 <= self.world <= MOST_RANKS:
            raise _refuse("world", self.world, "cannot be used", f"a whole number from 1 to {MOST_RANKS}")
        if self.function not in FUNCTIONS:
            raise unknown("attention-cp", "function", self.function, FUNCTIONS)
        if self.function == HSTU and self.nheads_kv != self.nheads:
            raise _refuse("nheads_kv", self.nheads_kv, f"is not nheads={self.nheads}", "as many (function=hstu)")
        if self.function == SOFTMAX and "/" in self.lengths:
            raise _refuse("lengths", self.lengths, "has keys of their own", "rows of each sequence, as in 100:50")
        try:
            _ = self.problem
        except UsageError as why:
            whose = "hstu" if self.function == HSTU else "attention"
            raise UsageError(str(why).replace(f"{whose}: ", "attention-cp: ", 1)) from None

    @property
    def problem(self) -> AttentionCase | HstuCase:
        """The problem as a case of the function's workload."""
        return self.hstu if self.function == HSTU else self.softmax

    @property
    def softmax(self) -> AttentionCase:
        """The problem of softmax attention."""
        return AttentionCase(
            batch=self.batch,
            seqlen=self.seqlen,
            nheads=self.nheads,
            nheads_kv=self.nheads_kv,
            headdim=self.headdim,
            causal=self.causal,
            dtype=self.dtype,
            lengths=self.lengths,
        )

    @property
    def hstu(self) -> HstuCase:
        """The problem of HSTU attention."""
        return HstuCase(
            batch=self.batch,
            seqlen=self.seqlen,
            nheads=self.nheads,
            attn_dim=self.headdim,
            causal=self.causal,
            dtype=self.dtype,
            lengths=self.lengths,
            gates=False,
        )

    @property
    def mode(self) -> str:
        """Always fwd."""
        return "fwd"

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each sequence."""
        problem = self.problem
        if isinstance(problem, HstuCase):
            return tuple(shape.length for shape in problem.sequences)
        return tuple(queries for queries, _ in problem.sequences)

    @property
    def id(self) -> str:
        """Short name such as ``w2-softmax-b1-s8192-h16-d128-bf16-causal-fwd``."""
        problem = self.softmax.id if self.function == SOFTMAX else self.hstu.id.replace(_blocks(self.hstu), "")
        return f"w{self.world}-{self.function}-{problem}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _blocks(case: HstuCase) -> str:
    """Part of a case's name about blocks, which the dense function does not have."""
    return f"-bs{case.block_size}x{case.block_counts}"


def _refuse(name: str, value: object, wrong: str, accepted: str) -> UsageError:
    return UsageError(refusal("attention-cp", name, value, wrong, accepted))
