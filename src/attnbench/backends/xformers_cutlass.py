"""``xformers-cutlass``: xFormers with its CUTLASS kernel pinned, which torch contains too."""

from __future__ import annotations

from typing import Any

from attnbench.backends.dense import ALL_DTYPES, Limits
from attnbench.backends.xformers_call import XformersBackend


class XformersCutlass(XformersBackend):
    """Grouped heads are refused: xFormers runs each group on its own stream and joins them afterwards."""

    name = "xformers-cutlass"
    title = "xFormers CUTLASS"
    tested = "NVIDIA H200, torch 2.11"
    limits = Limits(
        dtypes=ALL_DTYPES,
        headdim_v=True,
        bottom_right=True,
        varlen=True,
        backward=True,
        capability=(5, 0),
        capability_below=(9, 1),
    )

    def operators(self, fmha: Any) -> tuple[Any, Any]:
        """Return CUTLASS for forward and backward."""
        return fmha.cutlass.FwOp, fmha.cutlass.BwOp
