"""``flash-attn-4``: FlashAttention 4, kernels in NVIDIA's CuTe Python DSL, compiled in the first call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.backends.base import Machine
from attnbench.backends.dense import Limits
from attnbench.backends.flash_call import FlashBackend
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from attnbench.workloads.attention.case import AttentionCase


class FlashAttn4(FlashBackend):
    """Hopper takes every pair of head dimensions up to 256, Blackwell up to 128 and two larger pairs."""

    name = "flash-attn-4"
    title = "FlashAttention 4"
    tested = "NVIDIA H200, torch 2.11"
    install = 'pip install "flash-attn-4[cu13]==4.0.0b36"'
    # Not the folder above: if FlashAttention 2 is installed there, it is another package.
    modules = ("flash_attn.cute.interface",)
    module = modules[0]
    distribution = "flash-attn-4"
    compiles = True
    unbounded = None
    limits = Limits(
        max_headdim=256,
        headdim_multiple=8,
        headdim_v=True,
        gqa=True,
        window=True,
        bottom_right=True,
        empty_rows=True,
        varlen=True,
        backward=True,
        capability=(8, 0),
        capability_below=(13, 0),
    )

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse cases for which the library has no kernel on this card.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        major = machine.capability[0] if machine.capability else None
        if case.has_backward and major == 8:
            raise Unsupported(refusal(self.name, "mode", case.mode, "has no backward on compute capability 8", "fwd"))
        pair = (case.headdim, case.headdim_v)
        if major in (10, 11) and max(pair) > 128 and pair not in ((192, 128), (256, 256)):
            raise Unsupported(
                refusal(
                    self.name,
                    "headdim, headdim_v",
                    f"{pair[0]}, {pair[1]}",
                    f"are too large on compute capability {major}",
                    "at most 128, or 192 with 128, or 256 with 256",
                )
            )
