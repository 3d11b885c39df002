"""``flash-attn-2``: the package flash-attn (Dao, 2.x).

It is distributed as source: building takes many jobs of several GB each, so `install` contains ``{max_jobs}``,
which is filled in for this machine's memory when it is shown (``install.format(max_jobs=4)``).
If it is not installed, `sdpa-flash` runs the copy in torch.
"""

from __future__ import annotations

from attnbench.backends.dense import Limits
from attnbench.backends.flash_call import FlashBackend


class FlashAttn2(FlashBackend):
    """Any head dimension up to 256; those not divisible by 8 are padded by the package."""

    name = "flash-attn-2"
    title = "FlashAttention 2"
    install = "MAX_JOBS={max_jobs} pip install --no-build-isolation flash-attn==2.8.3"
    # Not the bare package: FlashAttention 4 installs into a folder of the same name.
    modules = ("flash_attn.flash_attn_interface",)
    module = modules[0]
    distribution = "flash-attn"
    limits = Limits(
        max_headdim=256,
        gqa=True,
        window=True,
        bottom_right=True,
        empty_rows=True,
        varlen=True,
        backward=True,
        capability=(8, 0),
    )
