"""The table of a step as the kernels take it: made on the host from lengths it knows."""

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
    """Numbers of each array of a table.

    Args:
        batch: sequences.
        entries: pages of all of them.
    """
    return {"offsets": batch + 1, "cached": batch, "indptr": batch + 1, "num_targets": batch, "indices": entries}


def table_parts(step: CacheStep, batch: int) -> dict[str, list[Sequence[int]]]:
    """What stands in the arrays of a table.

    Args:
        step: what it is a table of.
        batch: sequences that the table has room for; those beyond the step's own have no rows and no pages.
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
    """A table of arrays on the device, under bounds of the rows and the cached tokens of a sequence."""
    return Step(**{name: arrays[name] for name in ARRAYS}, max_new=max_new, max_cached=max_cached)


def make_table(step: CacheStep, device: torch.device) -> Step:
    """The table of one step by itself."""
    packing = Packing(table_lengths(len(step.users), sum(map(len, step.pages))))
    buffer = packing.empty(device)
    packing.fill(table_parts(step, len(step.users)), buffer)
    return table_of(packing.views(buffer), max_new=step.max_new, max_cached=step.max_cached)
