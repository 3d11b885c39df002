"""``hstu-bsa-eager``: block-sparse HSTU attention written in PyTorch, step by step, in the case's own precision.

It defines the function and is not optimised: the selected branch is a dense product with a
mask, so the scores of all sequences are stored whole, [B, H, N, N].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch
from attnbench.backends.hstu import HstuBackend, Operands, Padded

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.hstu.case import HstuCase
    from attnbench.workloads.hstu.inputs import HstuInputs


class HstuBsaEager(HstuBackend):
    """Unfused; pooling, selection and padding are part of the call."""

    name = "hstu-bsa-eager"
    title = "HSTU block-sparse in PyTorch"
    variant = "hstu-bsa"
    install = "part of torch"
    devices = ("cpu", "cuda")

    @contextmanager
    def session(self, case: HstuCase, inputs: HstuInputs) -> Iterator[Launch]:
        """Use jagged tensors; the outputs include the selected blocks."""
        import torch

        padded, silu = Padded(case, inputs), torch.nn.functional.silu
        blocks, row, key = _Blocks(case, padded), padded.position[:, None], padded.key
        seen = padded.seen[:, None]
        past, own = (key <= row) & (key < seen), (key == row) & (row >= seen)
        near = past & (row.minimum(seen) - key < (case.local_window or 0)) | own
        chosen: dict[str, Tensor] = {}

        def attend(q: Tensor, k: Tensor, v: Tensor, gates: Tensor | None = None) -> Tensor:
            q, k, v = padded.pad(q, queries=True), padded.pad(k), padded.pad(v)
            coarse = q @ blocks.means(k).mT * case.alpha
            picked = blocks.select(coarse.detach())
            chosen["blocks"] = padded.jagged(picked)
            fine = silu(q @ k.mT * case.alpha)
            branches = [
                silu(coarse).masked_fill(~blocks.ended, 0.0) @ blocks.means(v) * case.block_size,
                fine.masked_fill(~(blocks.hold(picked) & past | own), 0.0) @ v,
            ]
            if case.local_window is not None:
                branches.append(fine.masked_fill(~near, 0.0) @ v)
            if gates is not None:
                weights = padded.pad(gates, queries=True).split(1, dim=-1)
                branches = [branch * weight for branch, weight in zip(branches, weights, strict=True)]
            return padded.jagged(sum(branches[1:], branches[0]) / case.scaling_seqlen)

        yield Operands(case, inputs, gates=True).launch(attend, choices=lambda: chosen)


class _Blocks:
    """The blocks of padded histories, and the selection among them."""

    def __init__(self, case: HstuCase, padded: Padded) -> None:
        import torch

        self.case, self.size = case, case.block_size
        row, seen = padded.position[:, None], padded.seen[:, None]
        self.count = max(1, *(-(-shape.seen // self.size) for shape in case.sequences), 0)
        block = torch.arange(self.count, device=row.device)
        self.ended = ((block + 1) * self.size - 1 <= row) & (block < seen // self.size)
        local = row.minimum(seen - 1) // self.size
        self.earlier, self.local = block < local, block == local
        self.of_key = (padded.key // self.size).clamp(max=self.count)
        query = torch.arange(padded.queries, device=row.device)[:, None]
        action = (row % 2 == 1) & (row < seen) & (query > 0)
        self.ranking = query - action.long() if case.pairs else None
        "index of the query whose ranking each query uses"

    def means(self, x: Tensor) -> Tensor:
        """Return the means [B, H, blocks, D] of the rows of each block."""
        import torch

        whole = torch.nn.functional.pad(x, (0, 0, 0, max(0, self.count * self.size - x.shape[2])))
        return whole[:, :, : self.count * self.size].unflatten(2, (self.count, self.size)).mean(3)

    def select(self, scores: Tensor) -> Tensor:
        """Return blocks [B, heads, queries, S] by the scores [B, H, queries, blocks], -1 for none."""
        import torch

        if self.case.selection == "shared":
            scores = scores.sum(1, keepdim=True)
        if self.ranking is not None:
            scores = scores.gather(2, self.ranking.expand_as(scores))
        scores = scores.masked_fill(~self.earlier, -torch.inf).masked_fill(self.local, torch.inf)
        best = scores.topk(min(self.case.block_counts, self.count), dim=3)
        picked = best.indices.masked_fill(best.values == -torch.inf, -1).int()
        return torch.nn.functional.pad(picked, (0, self.case.block_counts - picked.shape[3]), value=-1)

    def hold(self, picked: Tensor) -> Tensor:
        """Return whether a query's blocks contain a key, bool [B, heads, queries, keys]."""
        held = picked.new_zeros(*picked.shape[:3], self.count + 1, dtype=bool)
        held.scatter_(3, picked.long() % (self.count + 1), True)
        held[..., self.count] = False
        return held[..., self.of_key]
