"""Seeded inputs of an `AttentionCase` in the workload's own layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from attnbench import dtypes
from attnbench.errors import unknown
from attnbench.workloads.attention.case import AttentionCase

Fill = Callable[[Tensor, torch.Generator], Tensor]

KINDS: dict[str, Fill] = {
    "normal": lambda tensor, generator: tensor.normal_(generator=generator),
    "uniform": lambda tensor, generator: tensor.uniform_(-1.0, 1.0, generator=generator),
    "zeros": lambda tensor, generator: tensor.zero_(),
}
"""normal: mean 0, deviation 1; uniform: in [-1, 1); zeros (flatters the clock: power stays low)."""



@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionInputs:
    """Tensors of a case.

    Dense: q [B, Sq, H, D], k [B, Sk, G, D], v [B, Sk, G, Dv], dout [B, Sq, H, Dv].  Variable length:
    the sequences one after another without padding, q [Tq, H, D], k [Tk, G, D], v [Tk, G, Dv],
    dout [Tq, H, Dv].  H query heads, G KV heads; all contiguous.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor | None
    "gradient of the output; None in mode fwd"
    cu_seqlens_q: Tensor | None
    "int32 [B + 1] on the device: sequence b has the rows from [b] to [b + 1]; None where dense"
    cu_seqlens_k: Tensor | None
    max_seqlen_q: int
    "most queries of a sequence"
    max_seqlen_k: int

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor a backend reads, by name; those the case does not have are left out."""
        names = ("q", "k", "v", "dout", "cu_seqlens_q", "cu_seqlens_k")
        return {name: tensor for name in names if (tensor := getattr(self, name)) is not None}


def torch_dtype(case: AttentionCase) -> torch.dtype:
    """The case's precision as torch spells it."""
    return dtypes.torch_dtype(case.dtype)


def make_inputs(case: AttentionCase, *, seed: int, kind: str, device: str | torch.device) -> AttentionInputs:
    """Make the inputs of a case.

    Values come from the device's own generator (a large tensor drawn on the CPU takes longer than
    the measurement), so a seed gives the same values again on the same kind of device, not across
    kinds.  q, k and v of a seed are the same in every mode.

    Args:
        case: the problem.
        seed: of the values.
        kind: a name in `KINDS`.
        device: where the tensors live.

    Raises:
        UsageError: the kind is not known.
    """
    if kind not in KINDS:
        raise unknown("attention", "input", kind, KINDS)
    generator = torch.Generator(device).manual_seed(seed)

    def tensor(rows: tuple[int, ...], heads: int, size: int) -> Tensor:
        return KINDS[kind](torch.empty((*rows, heads, size), dtype=torch_dtype(case), device=device), generator)

    lengths_q, lengths_k = zip(*case.sequences, strict=True)
    rows_q = (sum(lengths_q),) if case.packed else (case.batch, case.seqlen)
    rows_k = (sum(lengths_k),) if case.packed else (case.batch, case.seqlen_k)
    return AttentionInputs(
        q=tensor(rows_q, case.nheads, case.headdim),
        k=tensor(rows_k, case.nheads_kv, case.headdim),
        v=tensor(rows_k, case.nheads_kv, case.headdim_v),
        dout=tensor(rows_q, case.nheads, case.headdim_v) if case.has_backward else None,
        cu_seqlens_q=_offsets(lengths_q, device) if case.packed else None,
        cu_seqlens_k=_offsets(lengths_k, device) if case.packed else None,
        max_seqlen_q=max(lengths_q),
        max_seqlen_k=max(lengths_k),
    )


def _offsets(lengths: tuple[int, ...], device: str | torch.device) -> Tensor:
    return torch.tensor([*accumulate(lengths, initial=0)], dtype=torch.int32, device=device)
