"""The table of a step: made on the host from lengths it knows, sent in one copy that nothing waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from attnbench.kernels.hstu.paged.problem import Step

ALIGNED = 4
"Numbers that parts of the table are padded to: 16 bytes, or kernels would be compiled for each alignment."


def make_table(cached: Sequence[int], new: Sequence[int], targets: Sequence[int], pages: Sequence[list[int]],
               device: torch.device) -> Step:
    """Make the table of a step.

    Args:
        cached: tokens of each user that are cached before the step.
        new: new tokens of history.
        targets: candidates.
        pages: of each user, for cached and new history.
        device: where the table is to be.
    """
    rows = np.asarray(new, dtype=np.int32) + np.asarray(targets, dtype=np.int32)
    held = np.fromiter((len(one) for one in pages), np.int32, len(pages))
    parts = (np.concatenate(([0], rows.cumsum())), np.asarray(cached), np.concatenate(([0], held.cumsum())),
             np.asarray(targets), np.concatenate([np.asarray(one, dtype=np.int32) for one in (*pages, [])]))
    starts = np.cumsum([0] + [-(-len(part) // ALIGNED) * ALIGNED for part in parts])
    packed = np.zeros(starts[-1], dtype=np.int32)
    for start, part in zip(starts, parts, strict=False):
        packed[start:start + len(part)] = part
    table = torch.from_numpy(packed)
    if device.type == "cuda":
        # Pinned memory comes from torch's cache, which gives it to nobody else before the copy is over.
        table = table.pin_memory().to(device, non_blocking=True)
    offsets, before, indptr, candidates, indices = (
        table[start:start + len(part)] for start, part in zip(starts, parts, strict=False))
    return Step(offsets=offsets, cached=before, indptr=indptr, indices=indices, num_targets=candidates,
                max_new=int(rows.max(initial=0)), max_cached=max(cached, default=0))
