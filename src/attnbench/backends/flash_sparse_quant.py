"""``flash-sparse-quant``: our 8-bit block-sparse attention, forward.

A call quantises (phases `smooth`, `quantise`) and computes attention (`kernel`); the lists of a map are made at set-up
and as the phase `convert`, or with a predictor (``cdf0.98``, ``m…+cdf0.98``) in the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Budget, Launch
from attnbench.backends.our_triton import OurTriton
from attnbench.backends.sparse import SparseBackend, SparseLimits
from attnbench.workloads.sparse.case import SparseCase

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.backends.differentiable import Attention
    from attnbench.kernels.flash.sparse_quant.config import Shape
    from attnbench.kernels.shared.family import Family
    from attnbench.workloads.sparse.inputs import SparseInputs


class FlashSparseQuant(SparseBackend, OurTriton[SparseCase, "SparseInputs"]):
    """Tensors [B, S, H, D]; a call allocates its results and the quantised tensors."""

    name = "flash-sparse-quant"
    title = "Block-sparse attention in 8 bits, ours (Triton)"
    tested = "NVIDIA H200, torch 2.11"
    heads_first = False
    limits = SparseLimits(max_headdim=128, gqa=True, causal=True, bottom_right=True, empty_rows=True, capability=(8, 9))

    def family(self) -> Family[Shape]:
        """Family of its launch configurations."""
        from attnbench.kernels.flash.sparse_quant.config import FAMILY

        return FAMILY

    def shape(self, case: SparseCase, capability: tuple[int, int]) -> Shape:
        """What its configurations depend on."""
        from attnbench.kernels.flash.sparse_quant.config import Shape

        rows, keys = case.block_shape
        return Shape(dim=case.headdim, block_q=rows, block_k=keys, capability=capability)

    def budget(self, case: SparseCase) -> Budget:
        """Return the budget of `flash-quant`, for the same roundings, but larger for queries of few keys.

        Of the bounds by kind only that of normal values is known for maps, whatever their density: emulated up to
        0.0382 of a head of 512 to 2048 rows, measured 0.0383 and 0.0384 of a head at 32768.
        """
        from attnbench.backends.flash_quant_call import ANY, OUTLIERS, PER_ELEMENT, bounds_by_input
        from attnbench.backends.flash_sparse_quant_call import largest_error

        known = bounds_by_input(case.dense)
        bounds = {kind: known[kind] if kind == "normal" else ANY for kind in known if kind != "outliers"}
        largest = largest_error(case, given=self.predictor is None)
        whole, head, share = OUTLIERS  # captured values too
        element = 0.0 if case.causal else PER_ELEMENT * largest
        return Budget(relative=largest, element=element, rel_l1=whole, head_rel_l1=head, largest=share, by_input=bounds)

    def attend(self, case: SparseCase, device: device) -> Attention:
        """See `Backend.attend`; prediction, lists and quantisation are marked as preparation."""
        from attnbench.backends.flash_sparse_quant_call import following, over_given_map

        if self.predictor is not None:
            return following(case, self.own, self.predictor.on(case, device))
        return over_given_map(case, self.own, device)

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Make the lists of the map; the phases of the preparation and the kernel have buffers of their own."""
        from attnbench.backends.flash_sparse_quant_call import SparseQuantCall
        from attnbench.kernels.flash.sparse_quant import api

        parts = SparseQuantCall(case, (inputs.q, inputs.k, inputs.v), self.own)
        terms: dict[str, Any] = {"block": case.block_shape, "causal": case.causal, "scale": case.scale}

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            assert parts.lists is not None  # made at set-up
            return api.flash_sparse_quant_attention(q, k, v, parts.lists, **terms, config=self.own or None)[0]

        notes = (f"forward {parts.config.short}; quantisation is part of the call",)
        launch = self.launch(case, inputs, attend, convert=parts.convert, notes=notes)
        phases = {"smooth": parts.smooth, "quantise": parts.quantise, "kernel": parts.kernel}
        yield replace(launch, phases={**launch.phases, **phases})
