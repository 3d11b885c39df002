"""``flash-triton``: our FlashAttention.

A configuration is the forward's (``m128n128w8s2-tma-pp``), the backward's (``b64x128w8s2-atomic``) or both
(``m…+b…``).  The default backward accumulates dQ with fp32 atomics; one with ``r…`` tiles is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch
from attnbench.backends.dense import DenseBackend, Limits
from attnbench.backends.our_triton import OurTriton
from attnbench.workloads.attention.case import AttentionCase

if TYPE_CHECKING:
    from torch import device

    from attnbench.backends.differentiable import Attention
    from attnbench.kernels.flash.config.space import Shape
    from attnbench.kernels.shared.family import Family
    from attnbench.workloads.attention.inputs import AttentionInputs


class FlashTriton(OurTriton[AttentionCase, "AttentionInputs"], DenseBackend):
    """A call allocates its results, and a tile counter or, for few queries, partial results."""

    name = "flash-triton"
    title = "FlashAttention, ours (Triton)"
    references = ("sdpa-flash", "fa3-fwd")
    tested = "NVIDIA H200, torch 2.11"
    limits = Limits(
        max_headdim=256,
        headdim_v=True,
        gqa=True,
        window=True,
        bottom_right=True,
        empty_rows=True,
        varlen=True,
        backward=True,
        capability=(8, 0),
    )

    def family(self) -> Family[Shape]:
        """Family of its launch configurations."""
        from attnbench.kernels.flash.config.family import FAMILY

        return FAMILY

    def shape(self, case: AttentionCase, capability: tuple[int, int]) -> Shape:
        """What its configurations depend on."""
        from attnbench.kernels.flash.config.defaults import installed_triton
        from attnbench.kernels.flash.config.family import Shape

        return Shape(
            dim=case.headdim,
            dim_v=case.headdim_v,
            item_bytes=4 if case.dtype == "fp32" else 2,
            seqlen_q=case.seqlen,
            seqlen_k=case.seqlen_k,
            packed=case.packed,
            right=case.causal or (case.window or (-1, -1))[1] >= 0,
            capability=capability,
            repeats=case.group_size,
            heads=case.batch * case.nheads,
            triton=installed_triton(),
        )

    def attend(self, case: AttentionCase, device: device) -> Attention:
        """See `Backend.attend`."""
        from attnbench.backends.flash_triton_call import function_of

        return function_of(case, self.own)

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use own copies of the inputs; results and workspace belong to the session."""
        from attnbench.backends.flash_triton_call import FlashSession

        yield FlashSession(case, inputs, self.own).launch()
