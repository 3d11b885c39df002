"""Memory filled with a pattern that no kernel computes, so that unwritten elements are visible.

Every byte is 0xFF.  In each floating format that is a NaN, and not the NaN that a processor produces (0x7FFF…
on a GPU, 0xFFC0… on an x86): an element that still holds it was not written, or was copied from unwritten
memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

COPIES = 2
"Freed blocks per output: a launch allocates before the last result is released."


def bits(tensor: Tensor) -> Tensor:
    """View a tensor as integers of the same width, whatever its strides."""
    import torch

    widths = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    # Undo the lazy negation of the view, so that the bits are those in memory.
    held = torch._neg_view(tensor.detach()) if tensor.is_neg() else tensor.detach()
    return held.view(widths[tensor.element_size()])


def poison_outputs(outputs: Mapping[str, Tensor], inputs: Iterable[Tensor]) -> None:
    """Fill outputs in place, except those that share memory with an input or overlap themselves."""
    import torch

    kept = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    # Inference mode may write to inference tensors, and bypasses autograd.
    with torch.inference_mode():
        for tensor in outputs.values():
            overlaps = any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))
            if tensor.untyped_storage().data_ptr() not in kept and not overlaps:
                bits(tensor).fill_(-1)


def poison_free_memory(like: Iterable[Tensor], device: Any) -> None:
    """Fill the memory that the allocator will hand out next for tensors of these sizes.

    On CUDA this includes every free block of the current stream's pool.  On a CPU the C library decides what
    is reused: this helps, but guarantees nothing.
    """
    import torch

    sizes = [max(1, tensor.numel() * tensor.element_size()) for tensor in like]
    held: list[Tensor] = []
    # If the allocation fails, the launch cannot get such a block either.
    with contextlib.suppress(torch.OutOfMemoryError):
        for size in sizes * COPIES:
            held.append(torch.empty(size, dtype=torch.uint8, device=device))
        if device.type == "cuda":
            for size in _free_blocks(device):
                held.append(torch.empty(size, dtype=torch.uint8, device=device))
    for block in held:
        block.fill_(0xFF)


def _free_blocks(device: Any) -> list[int]:
    """Return the sizes in bytes of the allocator's free blocks that a request of that size would get."""
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    stream = torch.cuda.current_stream(index).cuda_stream
    small = 2**20  # The allocator serves requests up to this from a pool of its own.
    return [
        block["size"]
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == index and segment["stream"] == stream
        for block in segment["blocks"]
        if block["state"] == "inactive" and (segment["segment_type"] == "small") == (block["size"] <= small)
    ]


def unusable(name: str, tensor: Tensor) -> str | None:
    """Describe why an output is unusable before its values are compared: unwritten, NaN or Inf.

    Args:
        name: of the output.
        tensor: the whole output.

    Returns:
        A message with counts and the first index, or None.
    """
    import torch

    if tensor.isfinite().all():
        return None
    kinds = (("never written", lambda: bits(tensor) == -1), ("NaN", tensor.isnan), ("Inf", tensor.isinf))
    for words, find in kinds:
        where = find()
        count = int(where.sum())
        if count:
            first = torch.unravel_index(where.reshape(-1).to(torch.uint8).argmax(), tensor.shape)
            place = [int(index) for index in first]
            return f"{name}: {words}: {count} of {tensor.numel()} elements, the first at {place}"
    return None
