"""``cp-ring``: a zigzag ring that overlaps communication with our kernels (`parallel/forms/ring`)."""

from __future__ import annotations

from attnbench.backends.context_parallel import ContextParallel


class CpRing(ContextParallel):
    """Merges outputs over the chunks of keys in fp32: softmax by log-sum-exps, HSTU by adding sums."""

    name, form = "cp-ring", "ring"
    title = "Ring (zigzag), ours"
    tested = "NVIDIA H200, torch 2.11"
