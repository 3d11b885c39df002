"""Inputs of a `SparseCase`: those of softmax attention, and the block map on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.workloads.attention import inputs as dense_inputs
from attnbench.workloads.attention.inputs import AttentionInputs
from attnbench.workloads.sparse.case import TILE, SparseCase
from attnbench.workloads.sparse.patterns import block_map


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseInputs:
    """Tensors of a case: q [B, Sq, H, D], k and v [B, Sk, G, D], block_map bool [B, H, ⌈Sq/bq⌉, ⌈Sk/bk⌉]."""

    q: Tensor
    k: Tensor
    v: Tensor
    block_map: Tensor
    notes: tuple[str, ...] = ()
    "as those of softmax attention"

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor a backend reads, by name."""
        return {"q": self.q, "k": self.k, "v": self.v, "block_map": self.block_map}

    @property
    def dense(self) -> AttentionInputs:
        """The same inputs without the map."""
        return AttentionInputs(
            q=self.q,
            k=self.k,
            v=self.v,
            dout=None,
            cu_seqlens_q=None,
            cu_seqlens_k=None,
            max_seqlen_q=self.q.shape[1],
            max_seqlen_k=self.k.shape[1],
        )


def make_inputs(case: SparseCase, *, seed: int, kind: str, device: str | torch.device) -> SparseInputs:
    """Make the inputs of a case; q, k and v are those of softmax attention, and the map is the case's own.

    A video of pattern `sta` is in tile order, as its map takes the tokens.

    Raises:
        UsageError: the kind is unknown, or a file does not fit.
    """
    grid = case.thw if case.grid else None
    values = dense_inputs.make_inputs(case.dense, seed=seed, kind=kind, device=device, grid=grid)
    q, k, v = values.q, values.k, values.v
    if case.pattern == "sta" and kind == "video":
        order = tile_order(case, q.device)
        q, k, v = (x[:, order] for x in (q, k, v))
    blocks = torch.from_numpy(block_map(case).copy()).to(device)
    return SparseInputs(q=q, k=k, v=v, block_map=blocks, notes=values.notes)


def tile_order(case: SparseCase, device: torch.device) -> Tensor:
    """Return for each token in tile order its place in the order of frames, lines and columns, int64 [seqlen]."""
    counts = (n // tile for n, tile in zip(case.thw, TILE, strict=True))
    shape = [size for pair in zip(counts, TILE, strict=True) for size in pair]
    return torch.arange(case.seqlen, device=device).view(shape).permute(0, 2, 4, 1, 3, 5).flatten()
