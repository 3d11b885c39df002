"""``cp-one``: the whole problem on one device, in a rank process like the others': the reference for scaling."""

from __future__ import annotations

from attnbench.backends.context_parallel import ContextParallel
from attnbench.workloads.attention_cp.case import CpCase


class CpOne(ContextParallel):
    """Our kernels on the first device; the other devices are idle."""

    name, form = "cp-one", "one"
    title = "One device, ours"
    tested = "NVIDIA H200, torch 2.11"

    def ranks(self, case: CpCase) -> int:
        """Return 1."""
        return 1
