"""Seeded inputs of an `AttentionCase` in the workload's own layout."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from attnbench import dtypes
from attnbench.errors import UsageError, refusal, unknown
from attnbench.workloads.attention.captured import read_captured, zero_rows
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.kinds import KINDS, Grid, drawn_on, fill
from attnbench.workloads.given_files import is_known


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionInputs:
    """Tensors of a case.

    Dense: q [B, Sq, H, D], k [B, Sk, G, D], v [B, Sk, G, Dv], dout [B, Sq, H, Dv].  Variable length:
    the sequences concatenated without padding, q [Tq, H, D], k [Tk, G, D], v [Tk, G, Dv],
    dout [Tq, H, Dv].  H query heads, G KV heads; all contiguous.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor | None
    "gradient of the output; None in mode fwd"
    cu_seqlens_q: Tensor | None
    "int32 [B + 1] on the device: sequence b has the rows from [b] to [b + 1]; None if dense"
    cu_seqlens_k: Tensor | None
    max_seqlen_q: int
    "most queries of a sequence"
    max_seqlen_k: int
    notes: tuple[str, ...] = ()
    "for the record: what a file of captured tensors has that a user should know"

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor a backend reads, by name, without those that the case does not have."""
        names = ("q", "k", "v", "dout", "cu_seqlens_q", "cu_seqlens_k")
        return {name: tensor for name in names if (tensor := getattr(self, name)) is not None}


def torch_dtype(case: AttentionCase) -> torch.dtype:
    """The case's precision as a torch dtype."""
    return dtypes.torch_dtype(case.dtype)


def make_inputs(
    case: AttentionCase, *, seed: int, kind: str, device: str | torch.device, grid: Grid | None = None
) -> AttentionInputs:
    """Make the inputs of a case.

    Values come from the device's own generator (drawing a large tensor on the CPU takes longer than
    the measurement), so a seed gives the same values on the same kind of device, but not across
    kinds.  q, k and v of a seed are the same in every mode.

    Args:
        case: the problem.
        seed: of the values.
        kind: a name in `kinds.KINDS`, or a file of captured tensors, whose q, k and v are used whatever the seed.
        device: of the tensors.
        grid: frames, height and width of kind video.

    Raises:
        UsageError: the kind is unknown, or the file does not fit.
    """
    if kind not in KINDS and not is_known(kind):
        raise unknown("attention", "input", kind, KINDS)
    generator = drawn_on(device, seed)
    taken = {} if kind in KINDS else _captured(case, kind)

    def tensor(name: str, rows: tuple[int, ...], heads: int, size: int) -> Tensor:
        if name in taken:
            return taken[name].to(device)
        made = torch.empty((*rows, heads, size), dtype=torch_dtype(case), device=device)
        return fill(kind if kind in KINDS else "normal", name, made, generator, grid=grid)

    lengths_q, lengths_k = zip(*case.sequences, strict=True)
    rows_q = (sum(lengths_q),) if case.packed else (case.batch, case.seqlen)
    rows_k = (sum(lengths_k),) if case.packed else (case.batch, case.seqlen_k)
    return AttentionInputs(
        q=tensor("q", rows_q, case.nheads, case.headdim),
        k=tensor("k", rows_k, case.nheads_kv, case.headdim),
        v=tensor("v", rows_k, case.nheads_kv, case.headdim_v),
        dout=tensor("dout", rows_q, case.nheads, case.headdim_v) if case.has_backward else None,
        cu_seqlens_q=_offsets(lengths_q, device) if case.packed else None,
        cu_seqlens_k=_offsets(lengths_k, device) if case.packed else None,
        max_seqlen_q=max(lengths_q),
        max_seqlen_k=max(lengths_k),
        notes=zero_rows(taken),
    )


def _captured(case: AttentionCase, name: str) -> dict[str, Tensor]:
    if case.packed:
        raise UsageError(refusal("attention", "lengths", case.lengths, "does not go with captured tensors", "full"))
    shapes: dict[str, tuple[int, ...]] = {
        "q": (case.batch, case.seqlen, case.nheads, case.headdim),
        "k": (case.batch, case.seqlen_k, case.nheads_kv, case.headdim),
        "v": (case.batch, case.seqlen_k, case.nheads_kv, case.headdim_v),
    }
    return read_captured(name, shapes, torch_dtype(case))


def _offsets(lengths: tuple[int, ...], device: str | torch.device) -> Tensor:
    return torch.tensor([*accumulate(lengths, initial=0)], dtype=torch.int32, device=device)
