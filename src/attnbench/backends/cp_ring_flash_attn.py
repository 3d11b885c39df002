"""``cp-ring-flash-attn``: the package ring-flash-attn, over FlashAttention 2 (`parallel/forms/ring_flash_attn`)."""

from __future__ import annotations

from attnbench.backends.context_parallel import OverFlashAttention


class CpRingFlashAttn(OverFlashAttention):
    """Its zigzag ring with a causal mask, its plain ring without."""

    name, form = "cp-ring-flash-attn", "ring-flash-attn"
    title = "ring-flash-attention"
    install = "pip install --no-build-isolation ring-flash-attn flash-attn==2.8.3"
    module, distribution = "ring_flash_attn", "ring-flash-attn"
