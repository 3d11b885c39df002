"""Similarity of two videos of the same prompt and noise, frame by frame: PSNR and SSIM.

PSNR    10 log10(1 / mean squared difference), values from 0 to 1
SSIM    Wang, Bovik, Sheikh and Simoncelli 2004 (doi:10.1109/TIP.2003.819861): a Gaussian window of 11 by 11 with
        deviation 1.5, K₁ = 0.01, K₂ = 0.03, computed on the luma
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d

WINDOW, DEVIATION, K1, K2 = 11, 1.5, 0.01, 0.03
LUMA = (0.299, 0.587, 0.114)
SAME_DB = 100.0
"PSNR of identical frames."


def psnr(mine: Tensor, other: Tensor) -> float:
    """Return the mean over frames, in dB, for [frames, 3, height, width] from 0 to 1."""
    squares = (mine.double() - other.double()).square().mean(dim=(1, 2, 3))
    return float((-10 * squares.log10()).clamp(max=SAME_DB).mean())


def ssim(mine: Tensor, other: Tensor) -> float:
    """Return the mean over frames and windows of [frames, 3, height, width] from 0 to 1, at least 11 high and wide."""
    weights = torch.tensor(LUMA, dtype=torch.float64, device=mine.device).view(1, 3, 1, 1)
    x, y = ((frames.double() * weights).sum(1, keepdim=True) for frames in (mine, other))
    at = torch.arange(WINDOW, dtype=torch.float64, device=mine.device) - WINDOW // 2
    line = (-at.square() / (2 * DEVIATION**2)).exp()
    window = torch.outer(line, line)
    window = (window / window.sum()).view(1, 1, WINDOW, WINDOW)
    mean_x, mean_y, xx, yy, xy = (conv2d(one, window) for one in (x, y, x * x, y * y, x * y))
    c1, c2 = K1**2, K2**2
    over = (2 * mean_x * mean_y + c1) * (2 * (xy - mean_x * mean_y) + c2)
    under = (mean_x.square() + mean_y.square() + c1) * (xx - mean_x.square() + yy - mean_y.square() + c2)
    return float((over / under).mean())


def as_frames(video: Tensor) -> Tensor:
    """Convert a decoder's [1, 3, frames, height, width], -1 to 1, to fp32 [frames, 3, height, width], 0 to 1."""
    return (video[0].transpose(0, 1).float() / 2 + 0.5).clamp(0, 1)
