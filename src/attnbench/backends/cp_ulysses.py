"""``cp-ulysses``: all-to-all from rows to heads, our kernels on whole sequences (`parallel/forms/ulysses`)."""

from __future__ import annotations

from attnbench.backends.context_parallel import ContextParallel


class CpUlysses(ContextParallel):
    """One all-to-all for queries, keys and values together; attention reads the received buffer through strides."""

    name, form = "cp-ulysses", "ulysses"
    title = "Ulysses, ours"
    tested = "NVIDIA H200, torch 2.11"
    divides_heads = True
