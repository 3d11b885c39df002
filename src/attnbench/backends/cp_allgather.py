"""``cp-allgather``: keys and values received straight to their place, our kernels (`parallel/forms/allgather`)."""

from __future__ import annotations

from attnbench.backends.context_parallel import ContextParallel


class CpAllgather(ContextParallel):
    """Nothing is merged or padded; jagged batches are dealt by work, and only long sequences cut."""

    name, form = "cp-allgather", "allgather"
    title = "All-gather of keys and values, ours"
