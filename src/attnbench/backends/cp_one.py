"""``cp-one``: the whole problem on one device, in a process like the others' ranks: what they are compared with."""

from __future__ import annotations

from attnbench.backends.context_parallel import ContextParallel
from attnbench.workloads.attention_cp.case import CpCase


class CpOne(ContextParallel):
    """Our kernels on the first device; the others rest."""

    name, form = "cp-one", "one"
    title = "One device, ours"

    def ranks(self, case: CpCase) -> int:
        """One."""
        return 1
