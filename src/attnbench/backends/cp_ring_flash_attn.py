"""``cp-ring-flash-attn``: the package ring-flash-attn, over FlashAttention 2 (`parallel/forms/ring_flash_attn`)."""

from __future__ import annotations

from attnbench.backends.context_parallel import OverFlashAttention


class CpRingFlashAttn(OverFlashAttention):
    """Its zigzag ring with a causal mask, its plain ring without."""

    name, form = "cp-ring-flash-attn", "ring-flash-attn"
    title = "ring-flash-attention"
    tested = "NVIDIA H200, torch 2.11"
    # Version 0.1.8 imports a function that version 5 of transformers no longer has.
    install = "pip install --no-build-isolation ring-flash-attn flash-attn==2.8.3 'transformers<5'"
    module, distribution = "ring_flash_attn", "ring-flash-attn"
