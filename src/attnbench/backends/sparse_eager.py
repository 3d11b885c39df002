"""``sparse-eager``: textbook block-sparse attention in PyTorch, with a dense mask.

It stores all scores, [B, H, Sq, Sk]: it defines the function, and saves no work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch
from attnbench.backends.mask import Mask
from attnbench.backends.sparse import ALL_DTYPES, SparseBackend, SparseLimits

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.sparse.case import SparseCase
    from attnbench.workloads.sparse.inputs import SparseInputs


class SparseEager(SparseBackend):
    """Unfused; keys and values are repeated for the query heads of their group."""

    name = "sparse-eager"
    title = "PyTorch under a mask"
    install = "part of torch"
    devices = ("cpu", "cuda")
    limits = SparseLimits(dtypes=ALL_DTYPES, gqa=True, causal=True, bottom_right=True, empty_rows=True)

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D]; the mask [B, H, Sq, Sk] is made once."""
        import torch

        made: dict[str, Tensor] = {}

        def convert(blocks: Tensor) -> None:
            made["hidden"] = visible_keys(case, blocks).logical_not_()

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if case.group_size > 1:
                k, v = (x.repeat_interleave(case.group_size, dim=1) for x in (k, v))
            scores = (q @ k.transpose(-2, -1)) * case.scale
            scores = scores.masked_fill(made["hidden"], torch.finfo(scores.dtype).min)
            return scores.softmax(dim=-1).masked_fill(made["hidden"], 0.0) @ v

        yield self.launch(case, inputs, attend, convert=convert)


def visible_keys(case: SparseCase, blocks: Tensor) -> Tensor:
    """Return bool [B, H, Sq, Sk]: whether a query sees a key, by the map and the causal mask."""
    rows, columns = case.block_shape
    seen = blocks.repeat_interleave(rows, 2)[:, :, : case.seqlen].repeat_interleave(columns, 3)[..., : case.seqlen_k]
    band = Mask.of(case.dense).visible(blocks.device)
    return seen.contiguous() if band is None else seen & band
