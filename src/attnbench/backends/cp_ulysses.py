"""``cp-ulysses``: rows exchanged for heads by all-to-all, our kernels on whole sequences (`parallel/forms/ulysses`)."""

from __future__ import annotations

from attnbench.backends.context_parallel import ContextParallel


class CpUlysses(ContextParallel):
    """One all-to-all for queries, keys and values together; attention reads what arrives by strides."""

    name, form = "cp-ulysses", "ulysses"
    title = "Ulysses, ours"
    divides_heads = True
