"""``flash-sparse-quant``: our block-sparse attention in 8 bits, forward.

A call quantises (phases `smooth`, `quantise`) and attends (`kernel`); the lists of a map are made at set-up and as the
phase `convert`, with a predictor (``cdf0.98``, ``m…+cdf0.98``) in the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from attnbench.backends.base import Budget, Launch
from attnbench.backends.our_triton import OurTriton
from attnbench.backends.sparse import SparseBackend, SparseLimits
from attnbench.workloads.sparse.case import SparseCase

if TYPE_CHECKING:
    from torch import device

    from attnbench.backends.differentiable import Attention
    from attnbench.kernels.flash.sparse_quant.config import Shape
    from attnbench.kernels.shared.family import Family
    from attnbench.workloads.sparse.inputs import SparseInputs


class FlashSparseQuant(SparseBackend, OurTriton[SparseCase, "SparseInputs"]):
    """Tensors [B, S, H, D]; buffers are there before, and nothing is allocated in a call."""

    name = "flash-sparse-quant"
    title = "Block-sparse attention in 8 bits, ours (Triton)"
    heads_first = False
    limits = SparseLimits(max_headdim=128, gqa=True, causal=True, bottom_right=True, empty_rows=True, capability=(8, 9))

    def family(self) -> Family[Shape]:
        """Names of its configurations."""
        from attnbench.kernels.flash.sparse_quant.config import FAMILY

        return FAMILY

    def shape(self, case: SparseCase, capability: tuple[int, int]) -> Shape:
        """What they depend on."""
        from attnbench.kernels.flash.sparse_quant.config import Shape

        rows, keys = case.block_shape
        return Shape(dim=case.headdim, block_q=rows, block_k=keys, capability=capability)

    def budget(self, case: SparseCase) -> Budget:
        """That of `flash-quant`, for the same roundings; a query of few keys may be off by more of the mean output."""
        from attnbench.backends.flash_sparse_quant_call import largest_error

        return Budget(relative=largest_error(case, given=self.predictor is None), rel_l1=0.043, head_rel_l1=0.05)

    def attend(self, case: SparseCase, device: device) -> Attention:
        """As of `Backend`; prediction, lists and quantisation are marked as preparation."""
        from attnbench.backends.flash_sparse_quant_call import following, over_given_map

        if self.predictor is not None:
            return following(case, self.own, self.predictor.on(case, device))
        return over_given_map(case, self.own, device)

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Lists of the map, quantised tensors and results."""
        from attnbench.backends.flash_sparse_quant_call import SparseQuantCall

        call = SparseQuantCall(case, (inputs.q, inputs.k, inputs.v), self.own)
        notes = (f"forward {call.config.short}; quantisation is part of the call",)
        launch = self.launch(case, inputs, call, convert=call.convert, notes=notes)
        parts = {"smooth": call.smooth, "quantise": call.quantise, "kernel": call.kernel}
        yield replace(launch, phases={**launch.phases, **parts})
