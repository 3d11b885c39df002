"""``flash-attn-3``: FlashAttention 3, the Hopper kernels (folder ``hopper`` of the FlashAttention source)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.backends.base import Machine
from attnbench.backends.dense import Limits
from attnbench.backends.flash_call import FlashBackend
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from attnbench.workloads.attention.case import AttentionCase


def check_headdims(who: str, case: AttentionCase) -> None:
    """Refuse head dimensions that no build of FlashAttention 3 compiles.

    Args:
        who: the backend's name.
        case: an attention case.

    Raises:
        Unsupported: naming headdim or headdim_v.
    """
    if case.headdim > 256:
        raise Unsupported(refusal(who, "headdim", case.headdim, "is too large", "at most 256"))
    if case.headdim != case.headdim_v:
        large = 128 < case.headdim <= 192 and 96 < case.headdim_v <= 128
        small = case.headdim <= 64 and case.headdim_v <= 512
        if case.has_backward or not (large or small):
            raise Unsupported(
                refusal(
                    who,
                    "headdim_v",
                    case.headdim_v,
                    f"does not go with headdim={case.headdim}, mode={case.mode}",
                    "the headdim; in mode fwd also 97 to 128 with headdim 129 to 192, or up to 512 with headdim up to 64",
                )
            )


class FlashAttn3(FlashBackend):
    """Forward and backward in 16 bits."""

    name = "flash-attn-3"
    title = "FlashAttention 3"
    tested = "NVIDIA H200, torch 2.11"
    install = (
        "MAX_JOBS={max_jobs} pip install --no-build-isolation "
        "'git+https://github.com/Dao-AILab/flash-attention.git@v2.8.3#subdirectory=hopper'"
    )
    modules = ("flash_attn_interface", "flash_attn_3.flash_attn_interface")
    module = modules[0]
    distribution = "flash-attn-3"
    limits = Limits(
        headdim_multiple=8,
        headdim_v=True,
        gqa=True,
        window=True,
        bottom_right=True,
        empty_rows=True,
        varlen=True,
        backward=True,
        capability=(8, 0),
        capability_below=(10, 0),
    )

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse cases that the library does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        check_headdims(self.name, case)
