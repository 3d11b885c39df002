"""``cp-yunchang``: USP of the package yunchang, Ulysses and ring combined (`parallel/forms/yunchang`)."""

from __future__ import annotations

from attnbench.backends.context_parallel import OverFlashAttention


class CpYunchang(OverFlashAttention):
    """All-to-all over as many ranks as divide the key heads, a ring over the rest."""

    name, form = "cp-yunchang", "yunchang"
    title = "USP (yunchang)"
    tested = "NVIDIA H200, torch 2.11"
    install = "pip install --no-build-isolation yunchang flash-attn==2.8.3"
    module = distribution = "yunchang"
    keeps_ranks = False  # its settings affect the whole process
