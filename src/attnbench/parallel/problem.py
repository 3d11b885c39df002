"""The problem that the ranks compute together, as data that is sent to their processes.  Imports without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SOFTMAX, HSTU = "softmax", "hstu"
FUNCTIONS = (SOFTMAX, HSTU)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Self-attention of packed sequences: q [T, H, D], k and v [T, G, D], out [T, H, D]."""

    lengths: tuple[int, ...]
    "rows of each sequence; T is their sum"
    heads: int
    "H query heads"
    heads_kv: int
    "G key and value heads, a divisor of H"
    dim: int
    "D"
    dtype: str
    "name of the torch dtype"
    causal: bool
    scale: float
    "of the scores"
    function: str = SOFTMAX
    divisor: int = 1
    "for HSTU: divisor of the outputs"

    @property
    def total(self) -> int:
        """T, rows of all sequences."""
        return sum(self.lengths)

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """Shapes of the whole tensors."""
        query, key = (self.total, self.heads, self.dim), (self.total, self.heads_kv, self.dim)
        return {"q": query, "k": key, "v": key, "out": query}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Problem:
        """Create it from `dataclasses.asdict` data that went through JSON."""
        return cls(**{**data, "lengths": tuple(data["lengths"])})
