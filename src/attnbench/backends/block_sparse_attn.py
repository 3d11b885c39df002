"""``block-sparse-attn``: Block-Sparse-Attention of MIT HAN Lab, FlashAttention 2's kernels over lists of 128x128 blocks.

Its public function sorts the map into lists in every call and reads a count back to the host.  Here the lists are made
at set-up by the library's own conversion, and the call is that of its operator.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch
from attnbench.backends.sparse import SparseBackend, SparseLimits, native_block

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.sparse.case import SparseCase
    from attnbench.workloads.sparse.inputs import SparseInputs


class BlockSparseAttn(SparseBackend):
    """Kernels of Ampere's class on every card; forward only."""

    name = "block-sparse-attn"
    title = "Block-Sparse-Attention (MIT)"
    install = (
        "git clone https://github.com/mit-han-lab/Block-Sparse-Attention.git && cd Block-Sparse-Attention && "
        "pip install packaging ninja && MAX_JOBS={max_jobs} pip install --no-build-isolation ."
    )
    module = "block_sparse_attn.block_sparse_attn_interface"
    distribution = "block_sparse_attn"
    heads_first = False
    limits = SparseLimits(headdims=(32, 64, 128), blocks=("128x128",), gqa=True, causal=True, capability=(8, 0))

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Tensors [B, S, H, D], which the library reads as packed rows [B·S, H, D]."""
        import torch

        library = importlib.import_module(self.module)
        device = inputs.q.device
        made: dict[str, Tensor] = {}
        starts = [
            torch.arange(case.batch + 1, dtype=torch.int32, device=device) * n for n in (case.seqlen, case.seqlen_k)
        ]
        heads = torch.arange(1, case.nheads + 1, dtype=torch.int32, device=device)  # head h has the h-th map
        no_streaming = torch.zeros(2 * case.nheads, dtype=torch.int32, device=device)
        block = native_block(case, self.limits.blocks)

        def convert(blocks: Tensor) -> None:
            made["lists"] = library.convert_blockmask_row_reverse(blocks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            packed = (x.flatten(0, 1) for x in (q, k, v))
            lengths = case.seqlen, case.seqlen_k
            rest = 0.0, case.scale, case.causal, False, False, -1, -1  # no dropout, streaming, weights or window
            out: Tensor = library._block_sparse_attn_forward(
                *packed, *starts, *block, heads, no_streaming, made["lists"], *lengths, *rest
            )[0]
            return out.unflatten(0, q.shape[:2])

        yield self.launch(case, inputs, attend, convert=convert)
