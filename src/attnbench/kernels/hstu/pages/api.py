"""Copy pages of one layer from one pool to another, in any order, by one launch, without synchronizing."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from attnbench.kernels.hstu.pages.portable import hstu_copy_pages
from attnbench.kernels.shared.card import takes_compiled
from attnbench.kernels.shared.limits import is_whole

__all__ = ["copy_pages"]

WHO = "hstu_copy_pages"
PROGRAMS, BLOCK, WARPS = 16, 2048, 8
"As fast as any larger number on an H200, where the bus is the limit."
WORD = 8


def copy_pages(
    source: Tensor, target: Tensor, from_pages: Tensor, to_pages: Tensor, *, programs: int = PROGRAMS
) -> None:
    """Copy pages: target[to_pages[i]] = source[from_pages[i]].

    Args:
        source: [pages, …], each page contiguous; on the card or in pinned host memory.
        target: [pages, …] with pages of the same shape, each contiguous, on the card; written to.
        from_pages: int64 [n] on the card.
        to_pages: int64 [n] on the card, without duplicates.
        programs: number of programs, among which the pages are divided.

    Raises:
        ValueError: an argument cannot be used; the message names it, its value and what is accepted.
    """
    for name, x in (("source", source), ("target", target), ("from_pages", from_pages), ("to_pages", to_pages)):
        if not isinstance(x, Tensor) or not x.dim():
            raise _wrong(name, repr(x)[:40], f"is of type {type(x).__name__}", "a tensor")
    if not is_whole(programs) or programs < 1:
        raise _wrong("programs", repr(programs)[:40], "cannot be used", "a whole number from 1")
    page_bytes = source[0].numel() * source.element_size() if len(source) else 0
    if source.shape[1:] != target.shape[1:] or source.dtype != target.dtype:
        raise _wrong(
            "source",
            f"{source.dtype}{list(source.shape[1:])}",
            "does not fit",
            f"pages of {target.dtype}{list(target.shape[1:])}, as of the target",
        )
    for name, x in (("source", source), ("target", target)):
        if not x[:1].is_contiguous() or any(
            count % WORD
            for count in (page_bytes, x.storage_offset() * x.element_size(), x.stride(0) * x.element_size())
        ):
            raise _wrong(name, list(x.shape), "is not a pool of whole words", "contiguous pages of 8-byte words")
    for name, x in (("from_pages", from_pages), ("to_pages", to_pages)):
        if x.dtype != torch.int64 or x.dim() != 1 or len(x) != len(from_pages) or x.device != target.device:
            raise _wrong(
                name,
                f"{x.dtype}{list(x.shape)}",
                "does not fit",
                "int64 in one dim on the target's device, equally many in both",
            )
        if not x.is_contiguous():
            raise _wrong(f"{name}.stride", x.stride(), "has gaps", "contiguous")
    compiled = isinstance(hstu_copy_pages, triton.JITFunction)
    if compiled and not takes_compiled(target):
        raise _wrong("target.device", target.device, "has no compiled kernels", "a CUDA device")
    if compiled and source.device != target.device and not source.is_pinned():
        raise _wrong("source.device", source.device, "is not read by the card", "its own memory, or pinned host memory")
    if not len(from_pages):
        return
    words = page_bytes // WORD
    with torch.cuda.device_of(target):
        hstu_copy_pages[(min(programs, len(from_pages) * -(-words // BLOCK)),)](
            source_ptr=_words(source),
            target_ptr=_words(target),
            from_ptr=from_pages,
            to_ptr=to_pages,
            pages=len(from_pages),
            words=words,
            source_stride=source.stride(0) * source.element_size() // WORD,
            target_stride=target.stride(0) * target.element_size() // WORD,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )


def _words(pool: Tensor) -> Tensor:
    """Return each page as 8-byte words, [pages, words]."""
    return pool.flatten(1).view(torch.int64)


def _wrong(name: str, value: object, why: str, accepted: str) -> ValueError:
    return ValueError(f"{WHO}: {name}={value} {why}; {accepted}")
