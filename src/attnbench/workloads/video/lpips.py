"""LPIPS, the distance of two pictures in the features of a network, read from a file.

Zhang, Isola, Efros, Shechtman and Wang 2018 (arXiv 1801.03924), version 0.1 with AlexNet: features after each of five
ReLUs, normalised over the channels, squared differences weighted by channel, mean over positions, summed.  The file
is a safetensors file of `features.N.weight` and `.bias` as torchvision's AlexNet names them, and
`linN.model.1.weight` [1, channels, 1, 1] as the package lpips does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from attnbench.errors import UsageError, refusal
from attnbench.models.hstu_ranking.checkpoint import read
from attnbench.models.video.config import WHO

LAYERS = ((0, 3, 64, 11, 4, 2), (3, 64, 192, 5, 1, 2), (6, 192, 384, 3, 1, 1), (8, 384, 256, 3, 1, 1),
          (10, 256, 256, 3, 1, 1))  # fmt: skip
"Layers of AlexNet: number in `features`, channels in and out, kernel, stride, padding."
POOLED = (3, 6)
"Layers after a pooling of 3 by 3 with stride 2."
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
"Normalisation of pictures from -1 to 1, by colour."
SMALLEST = 32
"Least side of a picture in pixels for which every layer has a position."


def load(path: Path, device: torch.device) -> dict[str, Tensor]:
    """Read the network from a file.

    Raises:
        UsageError: a tensor is missing or has another shape.
    """
    found, wanted = read(path), dict(_shapes())
    for name, shape in wanted.items():
        if name not in found or tuple(found[name].shape) != shape:
            has = list(found[name].shape) if name in found else "nothing"
            wrong = "does not fit LPIPS with AlexNet"
            raise UsageError(refusal(WHO, "lpips", f"{path.name} {name}={has}", wrong, f"{list(shape)}"))
    return {name: found[name].to(device=device, dtype=torch.float32) for name in wanted}


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    for number, (place, channels, out, kernel, _, _) in enumerate(LAYERS):
        yield f"features.{place}.weight", (out, channels, kernel, kernel)
        yield f"features.{place}.bias", (out,)
        yield f"lin{number}.model.1.weight", (1, out, 1, 1)


def lpips(mine: Tensor, other: Tensor, network: Mapping[str, Tensor]) -> float:
    """Return the mean over frames, for [frames, 3, height, width] from 0 to 1, at least 32 high and wide."""
    total = torch.zeros(len(mine), device=mine.device)
    for number, (x, y) in enumerate(zip(_features(mine, network), _features(other, network), strict=True)):
        unit = (x / (x.norm(dim=1, keepdim=True) + 1e-10) - y / (y.norm(dim=1, keepdim=True) + 1e-10)).square()
        total = total + conv2d(unit, network[f"lin{number}.model.1.weight"]).mean(dim=(1, 2, 3))
    return float(total.mean())


def _features(frames: Tensor, network: Mapping[str, Tensor]) -> Iterator[Tensor]:
    shift, scale = (torch.tensor(values, device=frames.device).view(1, 3, 1, 1) for values in (SHIFT, SCALE))
    x = (2 * frames.float() - 1 - shift) / scale
    for place, _, _, _, stride, padding in LAYERS:
        x = max_pool2d(x, 3, 2) if place in POOLED else x
        x = relu(
            conv2d(
                x,
                network[f"features.{place}.weight"],
                network[f"features.{place}.bias"],
                stride=stride,
                padding=padding,
            )
        )
        yield x
