"""q, k and v in e4m3 with a scale for each sequence and head, quantised by torch, for libraries that require it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 448.0
"Largest e4m3 value."
SMALLEST = 1e-30
"Replaces the largest value of a tensor of zeros."


def quantised(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Return q, k and v [B, S, H, D] in e4m3, each with its dequantisation scales, fp32 [B, heads of keys]."""
    import torch

    made, heads = {}, k.shape[2]
    for name, x in (("q", q), ("k", k), ("v", v)):
        groups = x.unflatten(2, (heads, -1))
        largest = torch.linalg.vector_norm(groups, math.inf, dim=(1, 3, 4)).float()
        # Rounded to the precision of x, so that the product below is not computed and stored in fp32.
        scale = (LARGEST / largest.clamp(min=SMALLEST)).to(x.dtype)
        made[name] = (groups * scale[:, None, :, None, None]).to(torch.float8_e4m3fn).flatten(2, 3)
        made[f"{name}_descale"] = scale.float().reciprocal()
    return made
