"""Pack the integer arrays of a step into one int32 buffer on the device, so that one copy transfers all.

The buffer may belong to one step, or to a CUDA graph that reads the same addresses in every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

ALIGNED = 4
"Each int32 array is padded to a multiple of this (16 bytes); otherwise kernels would be compiled for each alignment."

Parts = Mapping[str, Sequence["np.ndarray | Sequence[int]"]]
"Contents of each array, as consecutive parts."


class Packing:
    """The position of each array in the buffer."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        """Place arrays one after another, each aligned.

        Args:
            lengths: length of each array.
        """
        self._places: dict[str, tuple[int, int, int]] = {}
        start = 0
        for name, length in lengths.items():
            following = start + -(-length // ALIGNED) * ALIGNED
            self._places[name] = start, start + length, following
            start = following
        self.length = start

    def empty(self, device: torch.device) -> Tensor:
        """Return a new buffer: int32 [length]."""
        return torch.empty(self.length, dtype=torch.int32, device=device)

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """Return the arrays in a buffer, by name."""
        return {name: buffer[start:stop] for name, (start, stop, _) in self._places.items()}

    def fill(self, parts: Parts, buffer: Tensor) -> None:
        """Write all arrays by one asynchronous copy; the rest of an array after its parts is 0.

        A buffer without memory (device "meta", where kernels are compiled ahead) is left as it is.
        """
        if buffer.device.type == "meta":
            return
        on_card = buffer.device.type == "cuda"
        # Pinned memory comes from torch's cache, which does not reuse it before the copy is over.
        staged = torch.empty(self.length, dtype=torch.int32, pin_memory=True) if on_card else buffer
        numbers = staged.numpy()
        for name, (start, stop, following) in self._places.items():
            at = start
            for part in parts[name]:
                numbers[at : at + len(part)] = part
                at += len(part)
            assert at <= stop, name
            numbers[at:following] = 0
        if on_card:
            buffer.copy_(staged, non_blocking=True)


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Return int64 tensors of arrays, each aligned to 16 bytes, transferred by one asynchronous copy."""
    whole = [len(array) + len(array) % 2 for array in arrays]
    packed = torch.zeros(sum(whole), dtype=torch.int64, pin_memory=device.type == "cuda")
    staged = packed.split(whole)
    for part, array in zip(staged, arrays, strict=True):
        part.numpy()[: len(array)] = array
    sent = packed.to(device, non_blocking=True).split(whole)
    return [part[: len(array)] for part, array in zip(sent, arrays, strict=True)]
