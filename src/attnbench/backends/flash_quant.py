"""``flash-quant``: our 8-bit attention, forward: int8 scores, e4m3 values.

A call is the whole operation: statistics of K and V (phase `smooth`), quantisation of all three tensors (`quantise`),
and attention (`kernel`).  A configuration (``m128n64w8s3``) sets tiles and code path of the attention kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Budget, Launch
from attnbench.backends.dense import DenseBackend, Limits, largest_term, one_value
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
    tested = "NVIDIA H200, torch 2.11"
    references = ("fa3-fwd", "sage1")
    limits = Limits(max_headdim=128, gqa=True, bottom_right=True, empty_rows=True, varlen=True, capability=(8, 9))

    def family(self) -> Family[Shape]:
        """Family of its launch configurations."""
        from attnbench.kernels.flash.quant.config import FAMILY

        return FAMILY

    def shape(self, case: AttentionCase, capability: tuple[int, int]) -> Shape:
        """What its configurations depend on."""
        from attnbench.kernels.flash.quant.config import Shape

        return Shape(dim=case.headdim, capability=capability)

    def budget(self, case: AttentionCase) -> Budget:
        """Weights and values have 4 bits, so each is off by up to 1/16, and an output by 4 % of its own size.

        The recipe written in torch has that error; its largest error is a fifth of the output's root mean
        square at 4096 keys and few rows, and a sixteenth of the largest term with many.  Under a causal mask a row of few
        keys is off by 1/16 of a value, up to 0.35, and outputs of more queries than keys are smaller on average.
        The score of the largest term is rounded too, which a single element may show: `PER_ELEMENT`.
        """
        from attnbench.backends.flash_quant_call import OUTLIERS, PER_ELEMENT, bounds_by_input

        outputs = case.batch * case.seqlen * case.nheads * case.headdim_v
        largest = max(0.5, largest_term(case.seqlen_k, outputs) / 16)
        element = PER_ELEMENT * largest
        if Mask.of(case).causal:
            seen = max(1.0, case.seqlen / case.seqlen_k)  # with no key an output is 0
            largest = max(largest * seen**0.5, 0.35 * one_value(case))
            element = 0.0
        whole, head, share = OUTLIERS  # captured values: as wide as outliers need
        bounds = bounds_by_input(case)
        return Budget(relative=largest, element=element, rel_l1=whole, head_rel_l1=head, largest=share, by_input=bounds)

    def attend(self, case: AttentionCase, device: device) -> Attention:
        """See `Backend.attend`; quantisation is marked as preparation."""
        from attnbench.backends.flash_quant_call import QuantFunction

        return QuantFunction(case, self.own)

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use own copies of the inputs."""
        from attnbench.backends.flash_quant_call import QuantSession

        yield QuantSession(case, inputs, self.own).launch()
