"""One block-sparse problem in 8 bits: what both `flash.sparse` and `flash.quant` take, refused by this function's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from attnbench.kernels.flash.problem import Problem
from attnbench.kernels.flash.quant.problem import quant_problem_of
from attnbench.kernels.flash.sparse.problem import SparseProblem, sparse_problem_of

WHO = "flash_sparse_quant_attention"


@contextmanager
def refused_here() -> Iterator[None]:
    """What is refused within, in one line of another function, is refused by this one."""
    try:
        yield
    except ValueError as why:
        raise ValueError(f"{WHO}: {str(why).partition(': ')[2]}") from None


def problems_of(
    q: Tensor, k: Tensor, v: Tensor, *, block: tuple[int, int], causal: bool = False, scale: float | None = None
) -> tuple[SparseProblem, Problem]:
    """The problem of these tensors as the lists and the kernel take it, and as the preparation does.

    Args:
        q: [B, Sq, H, D].
        k: [B, Sk, G, D].
        v: [B, Sk, G, D].
        block: queries and keys of a block, one of `flash.sparse.problem.BLOCKS`.
        causal: no key after a query's own position; the last query meets the last key.
        scale: of the scores; None: 1 / sqrt(D).

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    with refused_here():
        sparse = sparse_problem_of(q, k, v, block=block, causal=causal, scale=scale)
        return sparse, quant_problem_of(q, k, v, causal=causal, scale=scale)


def wrong(name: str, value: object, what: str, accepted: str) -> ValueError:
    """The one line of a refusal."""
    return ValueError(f"{WHO}: {name}={value} {what}; {accepted}")
