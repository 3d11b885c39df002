"""``cp-ring``: a zigzag ring that overlaps communication with our kernels (`parallel/forms/ring`)."""

from __future__ import annotations

from attnbench.backends.context_parallel import ContextParallel


class CpRing(ContextParallel):
    """Merges outputs by their log-sum-exp, which HSTU attention does not have."""

    name, form = "cp-ring", "ring"
    title = "Ring (zigzag), ours"
    functions = ("softmax",)
