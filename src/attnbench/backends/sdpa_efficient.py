"""``sdpa-efficient``: SDPA with its memory-efficient kernel pinned (the CUTLASS one from xFormers)."""

from __future__ import annotations

from attnbench.backends.dense import ALL_DTYPES, Limits
from attnbench.backends.sdpa_call import PinnedSdpa


class SdpaEfficient(PinnedSdpa):
    """Causal with Sq < Sk is the kernel's own flag; a window is a mask tensor.

    Whether grouped heads and a head dimension are supported depends on torch's version and the dtype's
    alignment: the session asks torch.
    """

    name = "sdpa-efficient"
    title = "SDPA memory-efficient"
    tested = "NVIDIA H200, torch 2.11"
    kernel = "mem_efficient"
    native_bottom_right = True
    limits = Limits(
        dtypes=ALL_DTYPES, headdim_v=True, gqa=True, window=True, bottom_right=True, backward=True, capability=(5, 0)
    )
