# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Pages gathered from one pool into another: target[to[i]] = source[from[i]].

The source may be pinned host memory, which the card then reads over the bus.  The grid is small, so that
concurrent steps keep most SMs, and each program has enough loads in flight to saturate the bus.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit(do_not_specialize=("pages",))
@no_type_check
def hstu_copy_pages(
    source_ptr, target_ptr, from_ptr, to_ptr, pages, words, source_stride, target_stride, BLOCK: tl.constexpr
):
    """Copy pages of `words` 8-byte words; strides from one page to the next, in words."""
    blocks = (words + BLOCK - 1) // BLOCK
    at = tl.arange(0, BLOCK)
    for number in tl.range(tl.program_id(0), pages * blocks, tl.num_programs(0)):
        page = number // blocks
        place = (number - page * blocks) * BLOCK + at
        there = place < words
        source = source_ptr + tl.load(from_ptr + page) * source_stride
        target = target_ptr + tl.load(to_ptr + page) * target_stride
        tl.store(target + place, tl.load(source + place, mask=there), mask=there)
