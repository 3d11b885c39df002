"""Which keys a query sees, in one form for every adapter.

Causal and window masks are both a band around the diagonal that ends in the bottom-right corner: query i
sees keys from ``i + Sk - Sq - left`` to ``i + Sk - Sq + right``.  A bound that hides nothing is
dropped, so that a decode step (Sq = 1, causal) has no mask, and a library that aligns its
causal mask to the top left can compute it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


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
        """Only later keys are hidden."""
        return self.left == -1 and self.right == 0

    @property
    def window(self) -> bool:
        """A band that is not simply causal."""
        return not self.unbounded and not self.causal

    @property
    def square(self) -> bool:
        """Sq = Sk everywhere: top-left and bottom-right alignment are the same."""
        return all(queries == keys for queries, keys in self.sequences)

    @property
    def empty_rows(self) -> int:
        """Number of queries, in the worst sequence, that see no key: their output is 0."""
        if self.right == -1:
            return 0
        return max(min(queries, max(0, queries - keys - self.right)) for queries, keys in self.sequences)

    def rule(self, case: AttentionCase, inputs: AttentionInputs) -> Callable[..., Tensor] | None:
        """Return FlexAttention's ``mask_mod(b, h, q, k)``, keeping packed sequences apart; None if unmasked."""
        import torch

        if not case.packed:
            shift = case.seqlen_k - case.seqlen

            def dense(b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
                return self._holds(row + shift - key)

            return None if self.unbounded else dense
        assert inputs.cu_seqlens_q is not None  # packed cases have both offsets
        assert inputs.cu_seqlens_k is not None
        queries, keys = (torch.tensor(lengths, device=inputs.q.device) for lengths in zip(*case.sequences, strict=True))
        documents = torch.arange(case.batch, device=inputs.q.device)
        of_row, of_key = documents.repeat_interleave(queries), documents.repeat_interleave(keys)
        # Distances of a row and a key from the bottom-right corner of their document.
        row_at = inputs.cu_seqlens_q[1:][of_row] - torch.arange(len(of_row), device=inputs.q.device)
        key_at = inputs.cu_seqlens_k[1:][of_key] - torch.arange(len(of_key), device=inputs.q.device)

        def packed(b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
            return (of_row[row] == of_key[key]) & self._holds(key_at[key] - row_at[row])

        return packed

    def _holds(self, distance: Tensor) -> Tensor:
        """Whether a key at this distance to the left of its query's position is visible."""
        seen = distance >= -self.right if self.right != -1 else distance == distance
        return seen if self.left == -1 else seen & (distance <= self.left)

    def visible(self, device: device | str) -> Tensor | None:
        """Bool [Sq, Sk] of a dense case, True where a key is visible; None if all are."""
        import torch

        if self.unbounded:
            return None
        ((queries, keys),) = self.sequences
        band = torch.ones(queries, keys, dtype=torch.bool, device=device)
        if self.right != -1:
            band = band.tril_(keys - queries + self.right)
        return band if self.left == -1 else band.triu_(keys - queries - self.left)
