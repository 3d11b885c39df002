"""Merges two outputs of the same queries over different keys by their log-sum-exp.

lse = log(exp lse₁ + exp lse₂)        out = out₁ exp(lse₁ - lse) + out₂ exp(lse₂ - lse)
"""

from __future__ import annotations

import torch
from torch import Tensor


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge a part into an output, in fp32, in place.

    Args:
        out: [T, H, D].
        lse: fp32 [H, T]; -∞ if a query has seen no key.
        part: as `out`.
        part_lse: as `lse`.
    """
    if out.device.type != "cpu":
        from attnbench.kernels.flash.merge import merge_outputs

        merge_outputs(out, lse, part, part_lse)
        return
    both = torch.logaddexp(lse, part_lse)
    shift = both.clamp_min(torch.finfo(torch.float32).min)  # so that rows that see nothing give exp(-∞), not NaN
    mine, its = ((one - shift).exp().T[..., None] for one in (lse, part_lse))
    out.copy_(out * mine + part * its)
    lse.copy_(both)
