"""``sparse-flash-attn-4``: FlashAttention 4 with block sparsity; kept blocks are listed as full, none as partial."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch
from attnbench.backends.flash_attn_4 import FlashAttn4
from attnbench.backends.sparse import SparseBackend, SparseLimits, lists_of, native_block
from attnbench.errors import Unavailable, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.sparse.case import SparseCase
    from attnbench.workloads.sparse.inputs import SparseInputs


class SparseFlashAttn4(SparseBackend):
    """Forward only; no causal mask: that would need a mask function compiled into the kernel."""

    name = "sparse-flash-attn-4"
    title = "FlashAttention 4, block sparse"
    tested = "NVIDIA H200, torch 2.11"
    install = FlashAttn4.install
    module = "flash_attn.cute.block_sparsity"
    distribution = FlashAttn4.distribution
    compiles = True
    heads_first = False
    limits = SparseLimits(max_headdim=128, blocks=("128x128",), gqa=True, capability=(9, 0), capability_below=(11, 0))

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Use tensors [B, S, H, D]; the first call compiles."""
        import torch

        function = importlib.import_module("flash_attn.cute.interface")._flash_attn_fwd
        if "block_sparse_tensors" not in inspect.signature(function).parameters:
            raise Unavailable(
                refusal(
                    self.name,
                    "flash_attn.cute",
                    self.version(),
                    "has no block sparsity",
                    "block_sparse_tensors",
                    self.install,
                )
            )
        form = importlib.import_module("flash_attn.cute.block_sparsity").BlockSparseTensorsTorch
        made: dict[str, Any] = {}

        def convert(blocks: Tensor) -> None:
            shape = native_block(case, self.limits.blocks)
            lists = lists_of(blocks)
            none = torch.zeros_like(lists["counts"])
            made["tensors"] = form(
                mask_block_cnt=none,
                mask_block_idx=torch.zeros_like(lists["indices"]),
                full_block_cnt=lists["counts"],
                full_block_idx=lists["indices"],
                block_size=shape,
            )

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = function(q, k, v, softmax_scale=case.scale, block_sparse_tensors=made["tensors"])[0]
            return out

        yield self.launch(case, inputs, attend, convert=convert)
