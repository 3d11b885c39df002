"""Exact useful work of an `AttentionCase`, in closed form.  Imports without torch.

FLOPs are counted over the (query, key) pairs that the mask leaves visible, of real rows only, for every
query head; a multiply-add counts as 2.  With D = headdim and Dv = headdim_v a pair costs

    forward   Q Kᵀ (2 D), P V (2 Dv)                                               2 (D + Dv)
    backward  Q Kᵀ again (2 D), dV = Pᵀ dO (2 Dv), dP = dO Vᵀ (2 Dv),
              dQ = dS K (2 D), dK = dSᵀ Q (2 D)                                    2 (3 D + 2 Dv)

so a backward is 2.5 forwards if D = Dv.  The softmax itself is not counted.

Bytes are the least an implementation can move: every input read once, every output written once, all
tensors of the case whole (K and V by their own heads):

    forward   Q, K, V read; O written
    backward  Q, K, V, O, dO read; dQ, dK, dV written

Row statistics (log-sum-exp, delta), offsets and whatever an implementation keeps between its kernels
are not counted.  ``fwd-bwd`` is the sum of both, in FLOPs and in bytes.
"""

from __future__ import annotations

from attnbench.dtypes import DTYPES
from attnbench.record import Work
from attnbench.workloads.attention.case import AttentionCase


def work(case: AttentionCase) -> Work:
    """Useful FLOPs and least bytes of one launch in the case's mode."""
    directions = {"fwd": (_forward,), "bwd": (_backward,), "fwd-bwd": (_forward, _backward)}[case.mode]
    counts = [direction(case) for direction in directions]
    return Work(flops=sum(flops for flops, _ in counts), bytes=sum(moved for _, moved in counts))


def visible_pairs(case: AttentionCase) -> int:
    """(query, key) pairs that the mask leaves visible, over all sequences, for one head."""
    left, right = case.reach
    return sum(visible_in_sequence(queries, keys, left, right) for queries, keys in case.sequences)


def visible_in_sequence(queries: int, keys: int, left: int | None, right: int | None) -> int:
    """Pairs (i, j) with ``-left <= j - (i + keys - queries) <= right``; None is unbounded."""
    diagonal = keys - queries
    total = queries * keys
    reached = total if right is None else _pairs_up_to(queries, keys, diagonal + right)
    return reached - (0 if left is None else _pairs_up_to(queries, keys, diagonal - left - 1))


def _pairs_up_to(queries: int, keys: int, distance: int) -> int:
    """Pairs (i, j) with ``j - i <= distance``: Σᵢ of i + distance + 1 clamped to 0..keys."""
    rising = _triangle(distance + queries) - _triangle(distance)
    above = _triangle(distance + queries - keys) - _triangle(distance - keys)
    return rising - above


def _triangle(n: int) -> int:
    return n * (n + 1) // 2 if n > 0 else 0


def _forward(case: AttentionCase) -> tuple[int, int]:
    flops = 2 * (case.headdim + case.headdim_v) * case.nheads * visible_pairs(case)
    q, k, v, out = _tensor_bytes(case)
    return flops, q + k + v + out


def _backward(case: AttentionCase) -> tuple[int, int]:
    flops = 2 * (3 * case.headdim + 2 * case.headdim_v) * case.nheads * visible_pairs(case)
    q, k, v, out = _tensor_bytes(case)
    return flops, (q + k + v + out + out) + (q + k + v)


def _tensor_bytes(case: AttentionCase) -> tuple[int, int, int, int]:
    """Bytes of Q, K, V and O; dO is as large as O."""
    item = DTYPES[case.dtype].bytes
    queries = sum(count for count, _ in case.sequences) * case.nheads * item
    keys = sum(count for _, count in case.sequences) * case.nheads_kv * item
    return queries * case.headdim, keys * case.headdim, keys * case.headdim_v, queries * case.headdim_v
