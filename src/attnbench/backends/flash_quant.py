"""``flash-quant``: our attention in 8 bits, forward: int8 scores, e4m3 values.

A call is the whole op: statistics of K and V (phase `smooth`), all three tensors quantised (`quantise`), and attention
(`kernel`).  A configuration (``m128n64w8s3``) says tiles and code path of the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Budget, Launch
from attnbench.backends.dense import DenseBackend, Limits
from attnbench.backends.mask import Mask
from attnbench.backends.our_triton import OurTriton
from attnbench.workloads.attention.case import AttentionCase

if TYPE_CHECKING:
    from torch import device

    from attnbench.backends.differentiable import Attention
    from attnbench.kernels.flash.quant.config import Shape
    from attnbench.kernels.shared.family import Family
    from attnbench.workloads.attention.inputs import AttentionInputs


class FlashQuant(OurTriton[AttentionCase, "AttentionInputs"], DenseBackend):
    """A call allocates its results and the quantised tensors."""

    name = "flash-quant"
    title = "Attention in 8 bits, ours (Triton)"
    references = ("fa3-fwd", "sage1")
    limits = Limits(max_headdim=128, gqa=True, bottom_right=True, empty_rows=True, varlen=True, capability=(8, 9))

    def family(self) -> Family[Shape]:
        """Names of its configurations."""
        from attnbench.kernels.flash.quant.config import FAMILY

        return FAMILY

    def shape(self, case: AttentionCase, capability: tuple[int, int]) -> Shape:
        """What they depend on."""
        from attnbench.kernels.flash.quant.config import Shape

        return Shape(dim=case.headdim, capability=capability)

    def budget(self, case: AttentionCase) -> Budget:
        """Weights and values have 4 bits, so each is off by up to a sixteenth, and an output by 4 % of its own size.

        That is what the recipe written in torch is off by; its largest error is a fifth of the output's root mean
        square at 4096 keys.  Under a causal mask a row of few keys is off by a sixteenth of a value, up to 0.35, in
        units of that mean sqrt(S / H_S) larger.
        """
        largest = 0.5
        if Mask.of(case).causal:
            harmonic = sum(1 / n for n in range(1, case.seqlen_k + 1))
            largest = max(largest, 0.35 * (case.seqlen_k / harmonic) ** 0.5)
        return Budget(relative=largest, rel_l1=0.043, head_rel_l1=0.05)

    def attend(self, case: AttentionCase, device: device) -> Attention:
        """As of `Backend`: the whole op, its quantisation marked as preparation."""
        from attnbench.backends.flash_quant_call import QuantFunction

        return QuantFunction(case, self.own)

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Own copies of the inputs."""
        from attnbench.backends.flash_quant_call import QuantSession

        yield QuantSession(case, inputs, self.own).launch()
