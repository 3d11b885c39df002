"""``sdpa-math``: SDPA with torch's unfused path pinned.

It composes plain operators and stores all scores.  torch computes 16-bit inputs in 32 bits
by default, so it is slower and more accurate than `eager`.
"""

from __future__ import annotations

from attnbench.backends.dense import ALL_DTYPES, Limits
from attnbench.backends.sdpa_call import PinnedSdpa


class SdpaMath(PinnedSdpa):
    """The unfused path; uses a mask tensor unless `is_causal` suffices."""

    name = "sdpa-math"
    title = "SDPA math"
    tested = "NVIDIA H200, torch 2.11"
    kernel = "math"
    devices = ("cpu", "cuda")
    limits = Limits(
        dtypes=ALL_DTYPES, headdim_v=True, gqa=True, window=True, bottom_right=True, empty_rows=True, backward=True
    )
