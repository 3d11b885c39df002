"""How outputs of the same queries over different keys become one, in fp32: a rule for each function.

softmax    lse = log(exp lse₁ + exp lse₂)    out = out₁ exp(lse₁ - lse) + out₂ exp(lse₂ - lse)
HSTU       out = (sum₁ + sum₂) / N           SiLU has no normaliser that depends on the keys
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.parallel.attend import Sequences, attend, attend_parts, sum_parts
from attnbench.parallel.problem import HSTU, SOFTMAX, Problem


@dataclass(frozen=True)
class Own:
    """The sequences of a rank's own rows: those that it has whole, then its chunks of others."""

    whole: Sequences
    chunks: Sequences
    both: Sequences

    @classmethod
    def of(cls, whole: list[int], chunks: list[int], device: torch.device) -> Own:
        """Sequences of these lengths."""
        return cls(*(Sequences(one, device=device) for one in (whole, chunks, whole + chunks)))


class Merged(ABC):
    """The output of a rank's rows, over its own keys and then over more and more keys of other ranks."""

    @abstractmethod
    def __init__(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, own: Own, problem: Problem) -> None:
        """Compute attention over the rank's own keys; `out` may be used for the result."""

    @abstractmethod
    def add(self, rows: slice, q: Tensor, k: Tensor, v: Tensor, of: Sequences) -> None:
        """Add attention of some rows, whose queries are `q`, over further keys, all of which they see."""

    @abstractmethod
    def finish(self) -> Tensor:
        """Return the output [T, H, D]."""


class MergedByLse(Merged):
    """Softmax: the output is rounded to its dtype after every merge."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, own: Own, problem: Problem) -> None:
        self.problem = problem
        self.out, lse = attend(q, k, v, own.both, problem, causal=problem.causal)
        assert lse is not None
        self.lse = lse

    def add(self, rows: slice, q: Tensor, k: Tensor, v: Tensor, of: Sequences) -> None:
        """Merge by the log-sum-exps."""
        part, part_lse = attend(q, k, v, of, self.problem, causal=False)
        assert part_lse is not None
        merge(self.out[rows], self.lse[:, rows], part, part_lse)

    def finish(self) -> Tensor:
        """Return the output, which is complete."""
        return self.out


class MergedBySum(Merged):
    """HSTU: sums of the chunks' rows stay in fp32 and are divided and rounded once; whole sequences are done at once."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, own: Own, problem: Problem) -> None:
        self.problem, self.out, self.start = problem, out, sum(own.whole.queries)
        done, rest = slice(0, self.start), slice(self.start, None)
        if not own.whole.empty:
            out[done], _ = attend(q[done], k[done], v[done], own.whole, problem, causal=problem.causal)
        self.parts = (
            None
            if own.chunks.empty
            else attend_parts(q[rest], k[rest], v[rest], own.chunks, problem, causal=problem.causal)
        )

    def add(self, rows: slice, q: Tensor, k: Tensor, v: Tensor, of: Sequences) -> None:
        """Add to the sums of these rows."""
        part = attend_parts(q, k, v, of, self.problem, causal=False)
        assert self.parts is not None
        assert part.shuffled is self.parts.shuffled, "columns of sums are in different orders"
        sums = self.parts.sums[rows.start - self.start : rows.stop - self.start, 0]
        sums += part.sums[:, 0] if part.sums.shape[1] == 1 else part.sums.sum(1)

    def finish(self) -> Tensor:
        """Divide and round the sums."""
        if self.parts is not None:
            sum_parts(self.parts, self.out[self.start :])
        return self.out


MERGED: dict[str, type[Merged]] = {SOFTMAX: MergedByLse, HSTU: MergedBySum}


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge a part into an output, in fp32, in place.

    Args:
        out: [T, H, D].
        lse: fp32 [H, T]; -∞ if a query has seen no key.
        part: as `out`.
        part_lse: as `lse`.
    """
    if out.device.type != "cpu":
        from attnbench.kernels.flash.merge import merge_outputs

        merge_outputs(out, lse, part, part_lse)
        return
    both = torch.logaddexp(lse, part_lse)
    shift = both.clamp_min(torch.finfo(torch.float32).min)  # so that rows that see nothing give exp(-∞), not NaN
    mine, its = ((one - shift).exp().T[..., None] for one in (lse, part_lse))
    out.copy_(out * mine + part * its)
    lse.copy_(both)
