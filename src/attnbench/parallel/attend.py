"""Attention of one rank over its own rows: our kernels on a GPU, plain PyTorch operations on a CPU.

Letters: Tq, Tk packed rows of queries and keys, H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from attnbench.kernels.hstu.arguments import Parts
from attnbench.parallel.problem import HSTU, Problem


class Sequences:
    """Lengths of packed sequences of queries and keys; offsets on the device are created once.

    A sequence's last query is aligned with its last key (bottom-right).

    Args:
        queries: rows of each.
        keys: the same for keys; None: equal to `queries`.
        device: of the offsets.
    """

    def __init__(self, queries: Sequence[int], keys: Sequence[int] | None = None, *, device: torch.device) -> None:
        self.queries, self.keys = list(queries), list(queries if keys is None else keys)
        self.device = device

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not any(self.queries)

    @property
    def alike(self) -> bool:
        """Whether all sequences have the same lengths, so that no offsets are needed."""
        return len(set(self.queries)) == 1 and len(set(self.keys)) == 1

    @cached_property
    def offsets(self) -> tuple[Tensor, Tensor]:
        """Int32 [B + 1] of queries and keys."""
        q, k = (
            torch.tensor([*accumulate(rows, initial=0)], dtype=torch.int32, device=self.device)
            for rows in (self.queries, self.keys)
        )
        return q, k


def attend(
    q: Tensor, k: Tensor, v: Tensor, of: Sequences, problem: Problem, *, causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute attention with the problem's function and scale.

    Args:
        q: [Tq, H, D] with any strides but a contiguous last dimension.
        k: [Tk, G, D].
        v: [Tk, G, D].
        of: their sequences.
        problem: function, scale, divisor.
        causal: hide keys after a query's own position.

    Returns:
        out [Tq, H, D]; and lse, fp32 [H, Tq], -∞ for a query that sees no key; None for HSTU.
    """
    if of.empty or not any(of.keys):
        return q.new_zeros(q.shape), None if problem.function == HSTU else q.new_full(
            (q.shape[1], q.shape[0]), -torch.inf, dtype=torch.float32
        )
    if problem.function == HSTU:
        return (_silu if q.device.type == "cpu" else _hstu)(q, k, v, of, problem, causal), None
    return (_plain if q.device.type == "cpu" else _flash)(q, k, v, of, problem, causal)


def attend_parts(q: Tensor, k: Tensor, v: Tensor, of: Sequences, problem: Problem, *, causal: bool) -> Parts:
    """Compute HSTU attention over some of the keys, without dividing or rounding it.

    Args:
        q: [Tq, H, D], the last dimension contiguous.
        k: [Tk, H, D].
        v: [Tk, H, D].
        of: their sequences, of which without a mask each may have more queries than keys.
        problem: function, scale, divisor: those of the whole problem.
        causal: hide keys after a query's own position.

    Returns:
        fp32 [Tq, parts, H, dim], with what `sum_parts` needs to make the output of them.
    """
    return (_silu_parts if q.device.type == "cpu" else _hstu_parts)(q, k, v, of, problem, causal)


def sum_parts(parts: Parts, out: Tensor) -> None:
    """Write the sum of parts to `out` [T, H, D], contiguous: added in fp32, divided, and rounded once."""
    if out.device.type == "cpu":
        out.copy_(parts.sums.sum(1) * parts.scale)
        return
    from attnbench.kernels.hstu.dense.api import hstu_sum

    hstu_sum(parts, out)


def _flash(
    q: Tensor, k: Tensor, v: Tensor, of: Sequences, problem: Problem, causal: bool
) -> tuple[Tensor, Tensor | None]:
    from attnbench.kernels.flash.api import flash_attention

    if of.alike:
        batch = len(of.queries)
        q, k, v = (x.unflatten(0, (batch, -1)) for x in (q, k, v))
        out, lse = flash_attention(q, k, v, causal=causal, scale=problem.scale)
        return out.flatten(0, 1), lse.transpose(0, 1).flatten(1).contiguous()  # [H, B Sq]; one sequence is not copied
    offsets_q, offsets_k = of.offsets
    out, lse = flash_attention(
        q,
        k,
        v,
        causal=causal,
        scale=problem.scale,
        cu_seqlens_q=offsets_q,
        cu_seqlens_k=offsets_k,
        max_seqlen_q=max(of.queries),
        max_seqlen_k=max(of.keys),
    )
    return out, lse[0]


def _hstu(q: Tensor, k: Tensor, v: Tensor, of: Sequences, problem: Problem, causal: bool) -> Tensor:
    from attnbench.kernels.hstu.dense.api import hstu_attention

    return hstu_attention(q, k, v, **_jagged(of, problem, causal))


def _hstu_parts(q: Tensor, k: Tensor, v: Tensor, of: Sequences, problem: Problem, causal: bool) -> Parts:
    from attnbench.kernels.hstu.dense.api import hstu_attention_parts

    return hstu_attention_parts(q, k, v, **_jagged(of, problem, causal))


def _jagged(of: Sequences, problem: Problem, causal: bool) -> dict[str, Any]:
    """The arguments of the HSTU functions beside q, k and v."""
    offsets_q, offsets_k = of.offsets
    return {
        "offsets": offsets_k,
        "max_seqlen": max(of.keys),
        "offsets_q": None if of.queries == of.keys else offsets_q,
        "max_seqlen_q": max(of.queries),
        "alpha": problem.scale,
        "scaling_seqlen": problem.divisor,
        "causal": causal,
    }


def _sequences(
    q: Tensor, k: Tensor, v: Tensor, of: Sequences, causal: bool
) -> list[tuple[slice, Tensor, Tensor, Tensor | None]]:
    """Return for each sequence: its queries, unscaled scores [H, Sq, Sk] in fp32, values [H, Sk, D], and the mask."""
    found = []
    at_q = at_k = 0
    for queries, keys in zip(of.queries, of.keys, strict=True):
        rows, columns = slice(at_q, at_q + queries), slice(at_k, at_k + keys)
        at_q, at_k = at_q + queries, at_k + keys
        group = q.shape[1] // k.shape[1]
        mine, its, values = (x.float().transpose(0, 1) for x in (q[rows], k[columns], v[columns]))
        its, values = its.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1) if causal else None
        found.append((rows, mine @ its.mT, values, hidden))
    return found


def _plain(
    q: Tensor, k: Tensor, v: Tensor, of: Sequences, problem: Problem, causal: bool
) -> tuple[Tensor, Tensor | None]:
    out, lse = torch.zeros_like(q), q.new_full((q.shape[1], q.shape[0]), -torch.inf, dtype=torch.float32)
    for rows, scores, values, hidden in _sequences(q, k, v, of, causal):
        if not values.shape[1]:
            continue
        scores = scores * problem.scale
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        lse[:, rows] = scores.logsumexp(-1)
        out[rows] = (scores.softmax(-1).nan_to_num(0.0) @ values).transpose(0, 1).to(q.dtype)
    return out, lse


def _silu(q: Tensor, k: Tensor, v: Tensor, of: Sequences, problem: Problem, causal: bool) -> Tensor:
    out = torch.empty_like(q)
    sum_parts(_silu_parts(q, k, v, of, problem, causal), out)
    return out


def _silu_parts(q: Tensor, k: Tensor, v: Tensor, of: Sequences, problem: Problem, causal: bool) -> Parts:
    out = q.new_zeros(q.shape, dtype=torch.float32)
    for rows, scores, values, hidden in _sequences(q, k, v, of, causal):
        weights = torch.nn.functional.silu(scores * problem.scale)
        if hidden is not None:
            weights = weights.masked_fill(hidden, 0.0)
        out[rows] = (weights @ values).transpose(0, 1)
    return Parts(out[:, None], 1 / problem.divisor, shuffled=False)
