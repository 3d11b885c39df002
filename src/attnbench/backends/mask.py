"""Which keys a query sees, in one form for every adapter.

Causal and window are both a band around the diagonal that ends in the bottom-right corner: query i
sees keys from ``i + Sk - Sq - left`` to ``i + Sk - Sq + right``.  A bound that hides nothing is
dropped, so that a decode step (Sq = 1, causal) is plainly unmasked, and a library that aligns its
causal mask to the top left can take it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.workloads.attention.case import AttentionCase


@dataclass(frozen=True, slots=True)
class Mask:
    """The band of one case, the same for each of its sequences; -1 is unbounded, as in flash-attn."""

    left: int
    right: int
    sequences: tuple[tuple[int, int], ...]
    "(queries, keys) of the sequences, each pair once"

    @classmethod
    def of(cls, case: AttentionCase) -> Mask:
        """Read the band of an attention case and drop the bounds that hide nothing in any sequence."""
        left, right = case.reach
        sequences = tuple(dict.fromkeys(case.sequences))
        if left is None or left >= max(keys for _, keys in sequences) - 1:
            left = -1
        if right is None or right >= max(queries for queries, _ in sequences) - 1:
            right = -1
        return cls(left, right, sequences)

    @property
    def unbounded(self) -> bool:
        """Every query sees every key."""
        return self.left == self.right == -1

    @property
    def causal(self) -> bool:
        """Only the future is hidden."""
        return self.left == -1 and self.right == 0

    @property
    def window(self) -> bool:
        """A band that is not just causal."""
        return not self.unbounded and not self.causal

    @property
    def square(self) -> bool:
        """Sq = Sk everywhere: top-left and bottom-right alignment are the same."""
        return all(queries == keys for queries, keys in self.sequences)

    @property
    def empty_rows(self) -> int:
        """Queries of the worst sequence that see no key: their output is 0."""
        if self.right == -1:
            return 0
        return max(min(queries, max(0, queries - keys - self.right)) for queries, keys in self.sequences)

    def visible(self, device: device | str) -> Tensor | None:
        """Bool [Sq, Sk] of a dense case, True where a key is seen; None where all are."""
        import torch

        if self.unbounded:
            return None
        ((queries, keys),) = self.sequences
        band = torch.ones(queries, keys, dtype=torch.bool, device=device)
        if self.right != -1:
            band = band.tril_(keys - queries + self.right)
        return band if self.left == -1 else band.triu_(keys - queries - self.left)
