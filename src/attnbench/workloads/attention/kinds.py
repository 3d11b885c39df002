"""Values of q, k and v by name (``--input``): a kernel's accuracy and a map's quality depend on them.

normal        mean 0, deviation 1
uniform       in [-1, 1)
zeros         unrealistic: power stays low, so the clock stays high
outliers      normal, plus a normal of deviation 10 in one element of 1000
channel-bias  normal; in k every channel of a head has its own mean, of deviation 5; the mean of v is 0.5
video         a smooth field over (t, h, w) plus noise of half its size, so that tokens attend to their neighbours;
              text before the video is noise.  q and k are the same random waves, v others
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Fill = Callable[[Tensor, torch.Generator], Tensor]
PLAIN: dict[str, Fill] = {
    "normal": lambda tensor, generator: tensor.normal_(generator=generator),
    "uniform": lambda tensor, generator: tensor.uniform_(-1.0, 1.0, generator=generator),
    "zeros": lambda tensor, generator: tensor.zero_(),
}
"Kinds whose values do not depend on the tensor or the workload."
KINDS = (*PLAIN, "outliers", "channel-bias", "video")
OUTLIERS, OUTLIER_DEVIATION = 1e-3, 10.0
BIAS_DEVIATION, V_MEAN = 5.0, 0.5
FRAMES = 13
"Frames of a video without a given grid, each of 2:3 (CogVideoX: 13 x 30 x 45 and 226 tokens of text)."
LENGTHS = (4.0, 6.0, 6.0)
"Correlation lengths of the field in frames, lines and columns."
NOISE = 0.5
Grid = tuple[int, int, int]


def drawn_on(device: str | torch.device, seed: int) -> torch.Generator:
    """Return a generator of the device; for tensors without memory ("meta") nothing is drawn, and any will do."""
    return torch.Generator("cpu" if torch.device(device).type == "meta" else device).manual_seed(seed)


def fill(kind: str, name: str, tensor: Tensor, generator: torch.Generator, *, grid: Grid | None = None) -> Tensor:
    """Fill a tensor in place.

    Args:
        kind: of `KINDS`.
        name: q, k, v or dout, on which the values of some kinds depend.
        tensor: [..., rows, heads, size]; several sequences of variable length count as one sequence.
        generator: on the tensor's device.
        grid: frames, height and width of the video; None: `grid_of` the rows.
    """
    PLAIN.get(kind, PLAIN["normal"])(tensor, generator)
    if kind in PLAIN or name == "dout":
        return tensor
    sequences = tensor if tensor.dim() == 4 else tensor[None]
    if kind == "outliers":
        for one in sequences:  # one by one, because the numbers drawn are fp32
            far = torch.empty(one.shape, device=one.device).normal_(0.0, OUTLIER_DEVIATION, generator=generator)
            one += (far * (torch.rand(one.shape, generator=generator, device=one.device) < OUTLIERS)).to(one.dtype)
    elif kind == "channel-bias":
        bias = torch.empty(tensor.shape[-2:], device=tensor.device).normal_(0.0, BIAS_DEVIATION, generator=generator)
        if name != "q":
            tensor += bias.to(tensor.dtype) if name == "k" else V_MEAN
    elif kind == "video":
        at = positions(tensor.shape[-3], grid, tensor.device)
        for one in sequences:
            one.copy_(field(name, one, at))
    return tensor


def grid_of(rows: int) -> Grid:
    """Return frames of 2:3 that hold as many rows as possible."""
    frames = FRAMES if rows >= 4 * FRAMES else 1
    height = max(1, math.isqrt(rows // frames * 2 // 3))
    return frames, height, rows // frames // height


def positions(rows: int, grid: Grid | None, device: torch.device) -> Tensor:
    """Return the position of each row in units of `LENGTHS`, fp32 [rows, 3]; NaN for the text before the video."""
    t, h, w = grid or grid_of(rows)
    at = torch.cartesian_prod(
        *(
            torch.arange(n, device=device, dtype=torch.float32) / length
            for n, length in zip((t, h, w), LENGTHS, strict=True)
        )
    )
    text = torch.full((rows - len(at), 3), math.nan, device=device)
    return torch.cat([text, at.reshape(-1, 3)])


def field(name: str, noise: Tensor, at: Tensor) -> Tensor:
    """Return a field [rows, heads, size]: waves plus the given noise; only noise for rows without a position."""
    heads, size = noise.shape[-2:]
    # q and k have the same waves in every head of a group, in whatever order they are drawn, so not by the seed.
    fixed = torch.Generator().manual_seed(7 if name in ("q", "k") else 11)
    waves = torch.randn(3, size, generator=fixed).to(noise.device)
    phase = (torch.rand(size, generator=fixed) * 2 * math.pi).to(noise.device)
    wave = (math.sqrt(2) * torch.cos(at @ waves + phase))[:, None].expand(-1, heads, -1)
    return torch.where(wave.isnan(), noise.float(), wave + NOISE * noise.float()).to(noise.dtype)
