"""``cp-allgather``: keys and values gathered directly into place, our kernels (`parallel/forms/allgather`)."""

from __future__ import annotations

from attnbench.backends.context_parallel import ContextParallel


class CpAllgather(ContextParallel):
    """Nothing is merged or padded; jagged batches are distributed by work, and only long sequences are split."""

    name, form = "cp-allgather", "allgather"
    title = "All-gather of keys and values, ours"
    tested = "NVIDIA H200, torch 2.11"
