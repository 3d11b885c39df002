"""``hstu-eager``: straightforward HSTU attention in PyTorch, on padded sequences, step by step.

It stores the scores of all sequences, [B, H, N, N].  Fused kernels are compared with it, and it runs out
of memory first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch
from attnbench.backends.hstu import HstuBackend, Operands, Padded

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.hstu.case import HstuCase
    from attnbench.workloads.hstu.inputs import HstuInputs


class HstuEager(HstuBackend):
    """Unfused; padding and unpadding are part of the call."""

    name = "hstu-eager"
    title = "HSTU in PyTorch"
    install = "part of torch"
    devices = ("cpu", "cuda")
    tested = "NVIDIA H200, torch 2.11"

    @contextmanager
    def session(self, case: HstuCase, inputs: HstuInputs) -> Iterator[Launch]:
        """Use jagged tensors; the mask is made once."""
        yield Operands(case, inputs).launch(dense_attention(case, inputs))


def dense_attention(case: HstuCase, inputs: HstuInputs) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the dense function ``fn(q, k, v) -> out`` of jagged tensors, for one case."""
    import torch

    padded = Padded(case, inputs)
    hidden = ~padded.visible()
    alpha, scaling = case.alpha, case.scaling_seqlen
    silu = torch.nn.functional.silu

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = padded.pad(q, queries=True) @ padded.pad(k).mT * alpha
        weights = silu(scores).masked_fill(hidden, 0.0)
        return padded.jagged(weights @ padded.pad(v) / scaling)

    return attend
