# ruff: noqa: ANN201 (bodies of kernels are not Python)
"""Programmatic dependent launch (sm_90 and later): a kernel is set up while the one before it on the stream ends.

    launch(kernel, grid, ..., **dependent(x))        META or constexpr DEPENDENT, and Triton's launch_pdl
    wait_for_kernels_before(DEPENDENT)               first in the kernel, in every program and before any load or store

Each such kernel lets the next one be set up as soon as all of its own programs run, and ends after those before it: so
whoever waits for the kernel before it has waited for all.  Behind a kernel that knows nothing of this, such as a product
of cuBLAS, it is set up when the last program there has ended.  A CUDA graph keeps such launches.
"""

from __future__ import annotations

from typing import Any, no_type_check

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from attnbench.kernels.shared.card import capability_of


def dependent(x: Tensor) -> dict[str, Any]:
    """Arguments of a launch on the card of a tensor: whether the kernel waits, and how it is launched then."""
    there = (capability_of(x) or (0, 0)) >= (9, 0)
    return {"DEPENDENT": there, **({"launch_pdl": True} if there else {})}


@triton.jit
@no_type_check
def wait_for_kernels_before(DEPENDENT: tl.constexpr):
    """Let the next kernel be set up, and wait until all that was launched before is done and seen."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
