"""A quantised attention problem as the kernels take it, and the checks of a caller's arguments.

Letters: B sequences, H query heads, G KV heads (H = G R), Sq queries, Sk keys, D dims of both; packed: Tq and Tk rows
of all sequences.  The mask is that of `flash.problem`, without a window.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.kernels.flash.problem import Problem, check_values, problem_of

WHO = "flash_quant_attention"
LARGEST_DIM = 128
LARGEST_ROWS = 2**31 - 2**16
"Most rows of all sequences and heads, padded: tile coordinates in the quantised tensors are 32-bit."


def quant_problem_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
) -> Problem:
    """The problem of these tensors, checked without reading their values; arguments as of `flash.problem.problem_of`.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    check_kind(q)
    try:
        problem = problem_of(
            q,
            k,
            v,
            causal=causal,
            scale=scale,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
        )
    except ValueError as why:
        raise _ours(why) from None
    if v.shape[-1] != q.shape[-1]:
        raise wrong("v.shape[-1]", v.shape[-1], "does not fit", f"{q.shape[-1]}, q's dims")
    for name, x, longest in (("q", q, problem.max_seqlen_q), ("k", k, problem.max_seqlen_k)):
        rows = x.shape[-2] * (problem.batch * (longest + 128) if x.dim() == 4 else x.shape[0] + 128 * problem.batch)
        if rows > LARGEST_ROWS:
            raise wrong(f"{name}.shape", tuple(x.shape), f"has {rows} rows of all heads", f"at most {LARGEST_ROWS}")
    return problem


def check_kind(q: Tensor) -> None:
    """Refuse a precision or a number of dims, before other kernels' checks, which take more.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    if not isinstance(q, Tensor) or not q.dim():
        return
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise wrong("q.dtype", q.dtype, "is not supported", "bfloat16 or float16")
    if not 1 <= q.shape[-1] <= LARGEST_DIM:
        what = "has too many dims" if q.shape[-1] else "has no dims"
        raise wrong("q.shape", tuple(q.shape), what, f"1 to {LARGEST_DIM} dims")


def check_offsets(problem: Problem, q: Tensor, k: Tensor) -> None:
    """Refuse offsets that would read or write outside the tensors; synchronizes with the device.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    try:
        check_values(problem, q, k)
    except ValueError as why:
        raise _ours(why) from None


def wrong(name: str, value: object, what: str, accepted: str) -> ValueError:
    """The error for an argument, in one line."""
    return ValueError(f"{WHO}: {name}={value} {what}; {accepted}")


def _ours(why: ValueError) -> ValueError:
    """The same error in the name of this function."""
    return ValueError(f"{WHO}: {str(why).partition(': ')[2]}")
