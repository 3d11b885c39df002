"""A block-sparse attention problem as the kernels take it, and the checks of a caller's arguments.

Letters: B sequences, H query heads, G KV heads (H = G R), Sq queries, Sk keys, D dims of both; blocks of bq queries and
bk keys, nq = ceil(Sq / bq) and nk = ceil(Sk / bk) of them: the last block of a sequence may be shorter.  A map is bool
[B, H, nq, nk]; causal is aligned bottom-right, as in `flash.problem`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.kernels.flash.problem import problem_of

WHO = "flash_sparse_attention"
BLOCKS = ((128, 128), (128, 64), (64, 128), (64, 64))
"Queries and keys of a block."
LARGEST_DIM = 128
LAYOUT = "[sequences, rows, heads, dims]"


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseProblem:
    """Lengths, blocks and mask of one call."""

    batch: int
    heads: int
    seqlen_q: int
    seqlen_k: int
    block: tuple[int, int]
    "queries and keys of a block of the map"
    causal: bool
    scale: float

    @property
    def block_q(self) -> int:
        """Queries of a block."""
        rows, _ = self.block
        return rows

    @property
    def block_k(self) -> int:
        """Keys of a block."""
        _, keys = self.block
        return keys

    @property
    def map_shape(self) -> tuple[int, int, int, int]:
        """Shape of the map: [B, H, nq, nk]."""
        return self.batch, self.heads, -(-self.seqlen_q // self.block_q), -(-self.seqlen_k // self.block_k)


def sparse_problem_of(
    q: Tensor, k: Tensor, v: Tensor, *, block: tuple[int, int], causal: bool = False, scale: float | None = None
) -> SparseProblem:
    """The problem of these tensors, checked without reading their values.

    Args:
        q: [B, Sq, H, D].
        k: [B, Sk, G, D].
        v: [B, Sk, G, D].
        block: queries and keys of a block, one of `BLOCKS`.
        causal: hide keys after a query's own position; the last query sees the last key.
        scale: factor of the scores; None: 1 / sqrt(D).

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    if not (isinstance(block, tuple | list) and tuple(block) in BLOCKS and all(type(size) is int for size in block)):
        raise wrong("block", block, "is not supported", ", ".join(f"({rows}, {keys})" for rows, keys in BLOCKS))
    # Before the checks of the dense kernels, which take more.
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise wrong(name, type(x).__name__, "is no tensor", LAYOUT)
        if x.dim() != 4:
            raise wrong(f"{name}.shape", tuple(x.shape), "does not fit", LAYOUT)
    if not 1 <= q.shape[-1] <= LARGEST_DIM:
        what = "has too many dims" if q.shape[-1] else "has no dims"
        raise wrong("q.shape", tuple(q.shape), what, f"1 to {LARGEST_DIM} dims")
    try:
        dense = problem_of(q, k, v, causal=causal, scale=scale)
    except ValueError as why:  # the checks of another function, under its name
        raise ValueError(f"{WHO}: {str(why).partition(': ')[2]}") from None
    if v.shape[-1] != q.shape[-1]:
        raise wrong("v.shape[-1]", v.shape[-1], "does not fit", f"{q.shape[-1]}, q's dims")
    queries, keys = block
    return SparseProblem(
        batch=dense.batch,
        heads=q.shape[-2],
        seqlen_q=dense.max_seqlen_q,
        seqlen_k=dense.max_seqlen_k,
        block=(queries, keys),
        causal=bool(causal),
        scale=dense.scale,
    )


def check_map(block_map: Tensor, problem: SparseProblem, device: torch.device) -> None:
    """Refuse a map that does not fit.

    Raises:
        ValueError: naming its shape, dtype or device and what is accepted.
    """
    if not isinstance(block_map, Tensor):
        raise wrong("block_map", type(block_map).__name__, "is no tensor", "a bool tensor, or the lists of one")
    if block_map.dtype != torch.bool:
        raise wrong("block_map.dtype", block_map.dtype, "is not supported", "bool")
    if tuple(block_map.shape) != problem.map_shape:
        rows, keys = problem.block
        raise wrong(
            "block_map.shape",
            tuple(block_map.shape),
            "does not fit",
            f"{problem.map_shape}, [sequences, heads, blocks of {rows} queries, blocks of {keys} keys]",
        )
    if block_map.device != device:
        raise wrong("block_map.device", block_map.device, "does not fit", f"{device}, q's")


def wrong(name: str, value: object, what: str, accepted: str) -> ValueError:
    """The error for an argument, in one line."""
    return ValueError(f"{WHO}: {name}={value} {what}; {accepted}")
