"""A block-sparse problem in 8 bits: accepted by both `flash.sparse` and `flash.quant`; errors carry this function's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from attnbench.kernels.flash.problem import Problem
from attnbench.kernels.flash.quant.problem import check_kind, quant_problem_of
from attnbench.kernels.flash.sparse.problem import SparseProblem, sparse_problem_of

WHO = "flash_sparse_quant_attention"


@contextmanager
def refused_here() -> Iterator[None]:
    """Re-raise errors of the functions called within under this function's name."""
    try:
        yield
    except ValueError as why:
        raise ValueError(f"{WHO}: {str(why).partition(': ')[2]}") from None


def problems_of(
    q: Tensor, k: Tensor, v: Tensor, *, block: tuple[int, int], causal: bool = False, scale: float | None = None
) -> tuple[SparseProblem, Problem]:
    """The problem in the form of the lists and the kernel, and in the form of the quantisation.

    Args:
        q: [B, Sq, H, D].
        k: [B, Sk, G, D].
        v: [B, Sk, G, D].
        block: queries and keys of a block, one of `flash.sparse.problem.BLOCKS`.
        causal: hide keys after a query's own position; the last query sees the last key.
        scale: factor of the scores; None: 1 / sqrt(D).

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    with refused_here():
        check_kind(q)
        sparse = sparse_problem_of(q, k, v, block=block, causal=causal, scale=scale)
        return sparse, quant_problem_of(q, k, v, causal=causal, scale=scale)


def wrong(name: str, value: object, what: str, accepted: str) -> ValueError:
    """The error for an argument, in one line."""
    return ValueError(f"{WHO}: {name}={value} {what}; {accepted}")
