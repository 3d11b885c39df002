"""``sparge``: SpargeAttn with P V in fp16; without a configuration it predicts with the library's defaults."""

from __future__ import annotations

from attnbench.backends.sparge_call import SpargeBackend


class Sparge(SpargeBackend):
    """P V in fp16: kernels of the Ampere generation on every card."""

    name = "sparge"
    default = "sim0.6-cdf0.98-pv50"
    title = "SpargeAttn, fp16 PV"
    tested = "NVIDIA H200, torch 2.11"
    functions = "spas_sage_attn_meansim_cuda", "spas_sage_attn_meansim_topk_cuda"
