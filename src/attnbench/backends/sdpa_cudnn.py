"""``sdpa-cudnn``: SDPA with the cuDNN kernel pinned.

torch gives cuDNN only a top-left causal flag, so causal with Sq ≠ Sk is refused rather than turned
into a mask tensor of Sq × Sk.  The first call of a shape builds a plan.
"""

from __future__ import annotations

from attnbench.backends.dense import Limits
from attnbench.backends.sdpa_call import PinnedSdpa


class SdpaCudnn(PinnedSdpa):
    """Whether a head dimension or grouped heads are supported depends on card and cuDNN: the session asks torch."""

    name = "sdpa-cudnn"
    title = "SDPA cuDNN"
    tested = "NVIDIA H200, torch 2.11"
    kernel = "cudnn"
    limits = Limits(max_headdim=256, headdim_multiple=8, headdim_v=True, gqa=True, backward=True, capability=(8, 0))
