"""``fa3-fwd``: the wheel fa3-fwd, FlashAttention 3 built for inference.

``fa3-fwd[split]`` lets the library split keys among programs if there are few queries (``num_splits=0``, its own
heuristic; off by default).  Its build omits fp16, windows and the backward (see its ``fa3_fwd_config``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import Machine
from attnbench.backends.dense import Limits
from attnbench.backends.flash_attn_3 import check_headdims
from attnbench.backends.flash_call import FlashBackend

if TYPE_CHECKING:
    from attnbench.workloads.attention.case import AttentionCase


class Fa3Fwd(FlashBackend):
    """Forward in bf16."""

    name = "fa3-fwd"
    title = "FlashAttention 3 (fa3-fwd)"
    tested = "NVIDIA H200, torch 2.11"
    install = "pip install fa3-fwd==0.0.3"
    modules = ("fa3_fwd_interface",)
    module = modules[0]
    distribution = "fa3-fwd"
    further: ClassVar = {"split": {"num_splits": 0}}
    limits = Limits(
        dtypes=("bf16",),
        headdim_multiple=8,
        headdim_v=True,
        gqa=True,
        bottom_right=True,
        empty_rows=True,
        varlen=True,
        capability=(8, 0),
        capability_below=(10, 0),
    )

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse what the wheel was built without.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        check_headdims(self.name, case)
