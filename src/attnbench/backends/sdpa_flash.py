"""``sdpa-flash``: SDPA with its flash kernel pinned.

On a GPU this is torch's copy of FlashAttention 2; on a CPU torch's own tiled kernel, which
also supports fp32 and mask tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench.backends.base import Machine
from attnbench.backends.dense import ALL_DTYPES, Limits
from attnbench.backends.sdpa_call import PinnedSdpa

if TYPE_CHECKING:
    from attnbench.workloads.attention.case import AttentionCase

ON_CPU = Limits(dtypes=ALL_DTYPES, gqa=True, window=True, bottom_right=True, empty_rows=True, backward=True)


class SdpaFlash(PinnedSdpa):
    """Causal with Sq ≠ Sk is the kernel's own flag, through torch's lower-right bias."""

    name = "sdpa-flash"
    title = "SDPA flash (FlashAttention 2)"
    tested = "NVIDIA H200, torch 2.11"
    kernel = "flash"
    native_bottom_right = True
    devices = ("cpu", "cuda")
    limits = Limits(max_headdim=256, gqa=True, bottom_right=True, empty_rows=True, backward=True, capability=(8, 0))

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse cases that the kernel of this device does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        if machine.device == "cpu":
            ON_CPU.check(self.name, case, machine)
        else:
            super().check(case, machine)
