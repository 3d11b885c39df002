"""q, k and v in e4m3, one scale for each sequence and head, made by torch: for libraries that leave it to their callers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 448.0
"of e4m3"
SMALLEST = 1e-30
"stands in for the largest value of zeros"


def quantised(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """[B, S, H, D] in e4m3, and for each the scales, fp32 [B, heads of keys], that undo it."""
    import torch

    made, heads = {}, k.shape[2]
    for name, x in (("q", q), ("k", k), ("v", v)):
        groups = x.unflatten(2, (heads, -1))
        largest = torch.linalg.vector_norm(groups, math.inf, dim=(1, 3, 4)).float()
        # Rounded to the precision of x, so that the product below is not made and written in fp32.
        scale = (LARGEST / largest.clamp(min=SMALLEST)).to(x.dtype)
        made[name] = (groups * scale[:, None, :, None, None]).to(torch.float8_e4m3fn).flatten(2, 3)
        made[f"{name}_descale"] = scale.float().reciprocal()
    return made
