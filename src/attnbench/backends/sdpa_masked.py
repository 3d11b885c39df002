"""``sdpa-masked``: torch's scaled_dot_product_attention with the map as a dense mask: the slow baseline.

The mask has a byte for every pair of query and key.  On a GPU the memory-efficient kernel is pinned, which supports
masks; on a CPU torch's flash kernel does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch
from attnbench.backends.sparse import ALL_DTYPES, SparseBackend, SparseLimits
from attnbench.backends.sparse_eager import visible_keys

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.sparse.case import SparseCase
    from attnbench.workloads.sparse.inputs import SparseInputs


class SdpaMasked(SparseBackend):
    """Computes every block and masks those that the map omits."""

    name = "sdpa-masked"
    title = "PyTorch SDPA under a mask"
    install = "part of torch"
    devices = ("cpu", "cuda")
    limits = SparseLimits(dtypes=ALL_DTYPES, gqa=True, causal=True, bottom_right=True)

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D]; keys and values of a group are repeated in the call."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        made: dict[str, Tensor] = {}
        kernel = SDPBackend.EFFICIENT_ATTENTION if inputs.q.is_cuda else SDPBackend.FLASH_ATTENTION

        def convert(blocks: Tensor) -> None:
            made["mask"] = visible_keys(case, blocks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if case.group_size > 1:
                k, v = (x.repeat_interleave(case.group_size, dim=1) for x in (k, v))
            with sdpa_kernel(kernel):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, made["mask"], scale=case.scale)

        yield self.launch(
            case,
            inputs,
            attend,
            convert=convert,
            notes=(f"kernel pinned: {kernel.name.lower()}",),
            executed_flops=case_flops(case),
        )


def case_flops(case: SparseCase) -> int:
    """Return the FLOPs of a kernel that computes every pair of a query and a key."""
    return 4 * case.batch * case.nheads * case.seqlen * case.seqlen_k * case.headdim
