"""The table of a step for the kernels, built on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

import torch
from torch import Tensor

from attnbench.kernels.hstu.paged.problem import Step
from attnbench.models.paged_cache.packing import Packing
from attnbench.models.paged_cache.step import CacheStep

ARRAYS = ("offsets", "cached", "indptr", "num_targets", "indices")


def table_lengths(batch: int, entries: int) -> dict[str, int]:
    """Return the length of each array of a table.

    Args:
        batch: number of sequences.
        entries: number of pages of all sequences.
    """
    return {"offsets": batch + 1, "cached": batch, "indptr": batch + 1, "num_targets": batch, "indices": entries}


def table_parts(step: CacheStep, batch: int) -> dict[str, list[Sequence[int]]]:
    """Return the contents of the arrays of a table.

    Args:
        step: the step.
        batch: number of sequences in the table; those beyond the step's own have no rows and no pages.
    """
    offsets = list(accumulate(map(sum, zip(step.new, step.targets, strict=True)), initial=0))
    indptr = list(accumulate(map(len, step.pages), initial=0))
    beyond = batch - len(step.users)
    return {
        "offsets": [offsets, offsets[-1:] * beyond],
        "cached": [step.cached],
        "indptr": [indptr, indptr[-1:] * beyond],
        "num_targets": [step.targets],
        "indices": [list(chain.from_iterable(step.pages))],
    }


def table_of(arrays: Mapping[str, Tensor], *, max_new: int, max_cached: int) -> Step:
    """Return a table of arrays on the device, with upper bounds of a sequence's rows and cached tokens."""
    return Step(**{name: arrays[name] for name in ARRAYS}, max_new=max_new, max_cached=max_cached)


def make_table(step: CacheStep, device: torch.device) -> Step:
    """Return the table of a single step."""
    packing = Packing(table_lengths(len(step.users), sum(map(len, step.pages))))
    buffer = packing.empty(device)
    packing.fill(table_parts(step, len(step.users)), buffer)
    return table_of(packing.views(buffer), max_new=step.max_new, max_cached=step.max_cached)
