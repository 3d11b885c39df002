"""Facts of the card that a tensor lies on."""

from __future__ import annotations

import torch
from torch import Tensor


def capability_of(x: Tensor) -> tuple[int, int] | None:
    """Compute capability of a tensor's card; None elsewhere."""
    return torch.cuda.get_device_capability(x.device) if x.device.type == "cuda" else None


def processors(x: Tensor) -> int:
    """SMs of a tensor's card; elsewhere few enough that a program has several tiles."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.device.type == "cuda" else 2
