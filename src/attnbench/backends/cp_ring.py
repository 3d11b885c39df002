"""``cp-ring``: a zigzag ring whose exchange is behind our kernels (`parallel/forms/ring`)."""

from __future__ import annotations

from attnbench.backends.context_parallel import ContextParallel


class CpRing(ContextParallel):
    """Outputs merged by the logarithms of their sums, which HSTU has not."""

    name, form = "cp-ring", "ring"
    title = "Ring (zigzag), ours"
    functions = ("softmax",)
