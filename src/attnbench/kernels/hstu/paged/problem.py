"""A serving step of HSTU attention as the kernels take it, and the checks of a caller's arguments.

A pool holds the cached keys and values of one layer: [pages, 2, page_size, H, D], contiguous; [p, 0] are keys of page
p, [p, 1] its values.  Sequence b of a step has

    cached[b]                        keys in the pool, in the pages indices[indptr[b]:indptr[b + 1]] in this order
    offsets[b + 1] - offsets[b]      new rows of q, k, v: new history first, then num_targets[b] candidates

The table is FlashInfer's (`kv_indptr`, `kv_indices`), except for the length: it lists the pages of the cached *and* of
the new history, and `cached` is the number of keys before the step.  So one table serves attention and append, the two
may run in either order, and an empty cache has length 0.  FlashInfer's `last_page_len` gives only the length after the
append, and cannot express 0.

Shapes, dtypes and devices are checked on the host in every call.  Checking values inside tensors synchronizes with the
device, so only `check_values` does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from attnbench.kernels.shared.limits import extent_fault, is_whole

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST_DIM = 256
LARGEST_COUNT = 2**24
PAGE_SIZES = (32, 64, 128)
_TABLE = ("offsets", "cached", "indptr", "indices", "num_targets")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Sequences and their pages in one call."""

    offsets: Tensor
    "int32 [B + 1]: sequence b has the new rows [b] to [b + 1]"
    cached: Tensor
    "int32 [B]: keys of each sequence that are in the pool before this step"
    indptr: Tensor
    "int32 [B + 1]: sequence b has the entries [b] to [b + 1] of `indices`"
    indices: Tensor
    "int32 [entries]: pages in the order of the keys: those of the cached keys, and for an append of the new history"
    num_targets: Tensor | None
    "int32 [B]: candidates at the end of each sequence's new rows; None: no candidates"
    max_new: int
    "upper bound of the new rows of a sequence"
    max_cached: int
    "upper bound of the cached keys of a sequence; a loose one costs speed, not correctness"

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.cached.shape[0] if self.cached.dim() else 0


def check_step(who: str, tensors: dict[str, Tensor], pool: Tensor, step: Step) -> None:
    """Refuse shapes, dtypes, devices and numbers that the kernels do not support, without reading tensor values.

    Args:
        who: the function a caller called.
        tensors: new rows [T, H, D] by name: q, k, v or k, v.
        pool: [pages, 2, page_size, H, D].
        step: sequences and pages.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    if not all(hasattr(step, name) for name in Step.__slots__):
        raise wrong(who, "step", repr(step)[:40], f"is of type {type(step).__name__}", "a Step")
    for name, x in {**tensors, "pool": pool, **{name: getattr(step, name) for name in _TABLE}}.items():
        if not isinstance(x, Tensor) and not (x is None and name == "num_targets"):
            raise wrong(who, name, repr(x)[:40], f"is of type {type(x).__name__}", "a tensor")
    for name, x in tensors.items():
        if x.dim() != 3:
            raise wrong(who, f"{name}.shape", tuple(x.shape), "is not packed", "[rows, heads, dims]")
    if pool.dim() != 5 or pool.shape[1] != 2 or pool.shape[2] not in PAGE_SIZES:
        raise wrong(
            who,
            "pool.shape",
            tuple(pool.shape),
            "is not a pool of pages",
            f"[pages, 2, page_size, heads, dims] with a page_size of {', '.join(map(str, PAGE_SIZES))}",
        )
    if not pool.is_contiguous():
        raise wrong(who, "pool.stride", pool.stride(), "has gaps", "a contiguous pool")
    if pool.dtype not in DTYPES:
        raise wrong(who, "pool.dtype", pool.dtype, "is not supported", "bfloat16, float16 or float32")
    if not 1 <= pool.shape[4] <= LARGEST_DIM:
        raise wrong(who, "pool.shape", tuple(pool.shape), "has too many dims or none", f"1 to {LARGEST_DIM} dims")
    rows = next(iter(tensors.values())).shape[:1]
    for name, x in tensors.items():
        wanted = (*rows, *pool.shape[3:])
        if tuple(x.shape) != wanted:
            raise wrong(who, f"{name}.shape", tuple(x.shape), "does not fit", f"{wanted}, as of the pool")
        if x.dtype != pool.dtype:
            raise wrong(who, f"{name}.dtype", x.dtype, "does not fit", f"{pool.dtype}, the pool's")
        if x.device != pool.device:
            raise wrong(who, f"{name}.device", x.device, "does not fit", f"{pool.device}, the pool's")
        if x.stride(2) != 1 and x.shape[2] > 1:
            raise wrong(who, f"{name}.stride", x.stride(), "has gaps in the last dim", "a last stride of 1")
    _check_table(who, pool, step)
    fault = extent_fault({**tensors, "pool": pool}, step.batch, step.max_new)
    if fault:
        raise wrong(who, *fault)


def _check_table(who: str, pool: Tensor, step: Step) -> None:
    batch = step.batch
    for name, length in (
        ("cached", batch),
        ("offsets", batch + 1),
        ("indptr", batch + 1),
        ("num_targets", batch),
        ("indices", None),
    ):
        x = getattr(step, name)
        if x is None and name == "num_targets":
            continue
        if x.dtype != torch.int32:
            raise wrong(who, f"{name}.dtype", x.dtype, "is not supported", "int32")
        if x.dim() != 1 or (length is not None and x.shape[0] != length):
            raise wrong(
                who,
                f"{name}.shape",
                tuple(x.shape),
                "does not fit",
                "one dim" if length is None else f"[{length}] for {batch} sequences",
            )
        if x.device != pool.device:
            raise wrong(who, f"{name}.device", x.device, "does not fit", f"{pool.device}, the pool's")
        if not x.is_contiguous():
            raise wrong(who, f"{name}.stride", x.stride(), "has gaps", "contiguous")
    for name in ("max_new", "max_cached"):
        value = getattr(step, name)
        if not is_whole(value) or not 0 <= value <= LARGEST_COUNT:
            raise wrong(who, name, repr(value), "cannot be used", f"a whole number from 0 to {LARGEST_COUNT}")


def check_values(who: str, rows: int, pool: Tensor, step: Step, *, appends: bool) -> None:
    """Refuse table values that would read or write outside the tensors; synchronizes with the device.

    Args:
        who: the function a caller called.
        rows: total number of new rows.
        pool: [pages, 2, page_size, H, D].
        step: sequences and pages.
        appends: whether the table needs pages for the new history too, and no page may occur twice.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    offsets, indptr, cached = step.offsets.tolist(), step.indptr.tolist(), step.cached.tolist()
    targets = [0] * step.batch if step.num_targets is None else step.num_targets.tolist()
    _check_rising(who, "offsets", offsets, rows, "new rows")
    _check_rising(who, "indptr", indptr, step.indices.shape[0], "entries of indices")
    indices, page = step.indices.tolist(), pool.shape[2]
    for b in range(step.batch):
        new, held = offsets[b + 1] - offsets[b], indptr[b + 1] - indptr[b]
        if not 0 <= targets[b] <= new:
            raise wrong(who, f"num_targets[{b}]", targets[b], "is out of range", f"from 0 to its {new} rows")
        if new > step.max_new:
            raise wrong(who, "max_new", step.max_new, f"is below the {new} rows of sequence {b}", f"at least {new}")
        if not 0 <= cached[b] <= step.max_cached:
            raise wrong(who, f"cached[{b}]", cached[b], "is out of range", f"from 0 to max_cached={step.max_cached}")
        needed = -(-(cached[b] + (new - targets[b] if appends else 0)) // page)
        if held < needed:
            raise wrong(
                who,
                f"indptr[{b + 1}]",
                indptr[b + 1],
                f"gives sequence {b} {held} pages",
                f"at least the {needed} of its keys",
            )
        for at in range(indptr[b], indptr[b] + needed):
            if not 0 <= indices[at] < pool.shape[0]:
                raise wrong(who, f"indices[{at}]", indices[at], "is no page", f"from 0 to {pool.shape[0] - 1}")
    if appends and len(set(indices)) < len(indices):
        twice = next(page for page in indices if indices.count(page) > 1)
        raise wrong(who, "indices", twice, "is there twice", "each page once")


def _check_rising(who: str, name: str, values: list[int], end: int, of: str) -> None:
    if values[0] != 0:
        raise wrong(who, f"{name}[0]", values[0], "is not the start", "0")
    for number, (before, after) in enumerate(pairwise(values)):
        if after < before:
            raise wrong(who, f"{name}[{number + 1}]", after, f"falls from {before}", "values that never decrease")
    if values[-1] != end:
        raise wrong(who, f"{name}[{len(values) - 1}]", values[-1], "is not the end", f"{end}, the number of {of}")


def wrong(who: str, name: str, value: object, why: str, accepted: str) -> ValueError:
    """The error for an argument: its name, its value, what is wrong with it, and what is accepted."""
    return ValueError(f"{who}: {name}={value} {why}; {accepted}")
