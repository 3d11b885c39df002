"""Seeded inputs of an `HstuCase` in the workload's own layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from attnbench import dtypes
from attnbench.errors import unknown
from attnbench.workloads.attention.kinds import PLAIN, drawn_on
from attnbench.workloads.hstu.case import HstuCase


@dataclass(frozen=True, kw_only=True, slots=True)
class HstuInputs:
    """Tensors of a case: the sequences concatenated without padding, all contiguous.

    q [Tq, H, D], k [Tk, H, D], v [Tk, H, Dv], dout [Tq, H, Dv], gates [Tq, H, branches].  Tq and Tk
    differ if delta_q keeps only the last rows of a sequence as queries.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Tensor | None
    "in (0, 1), in the order of `HstuCase.branches`; None if the case has none.  The dense variant ignores it"
    dout: Tensor | None
    "gradient of the output; None in mode fwd"
    seq_offsets: Tensor
    "int64 [B + 1] on the device: sequence b has the keys from [b] to [b + 1]"
    seq_offsets_q: Tensor
    "the same for the queries"
    num_targets: Tensor | None
    "int64 [B]; None if no sequence has targets"
    max_seqlen: int
    "most keys of a sequence; not the divisor of the outputs, which is a field of the case"
    max_seqlen_q: int

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor a backend reads, by name, without those that the case does not have."""
        names = ("q", "k", "v", "gates", "dout", "seq_offsets", "seq_offsets_q", "num_targets")
        return {name: tensor for name in names if (tensor := getattr(self, name)) is not None}


def torch_dtype(case: HstuCase) -> torch.dtype:
    """The case's precision as a torch dtype."""
    return dtypes.torch_dtype(case.dtype)


def make_inputs(case: HstuCase, *, seed: int, kind: str, device: str | torch.device) -> HstuInputs:
    """Make the inputs of a case.

    Values come from the device's own generator, so a seed gives the same values on the same kind
    of device.  q, k, v and gates of a seed are the same in every mode.  Gates are the sigmoid of
    values of this `kind`.

    Args:
        case: the problem.
        seed: of the values.
        kind: normal, uniform or zeros, as in softmax attention.
        device: of the tensors.

    Raises:
        UsageError: the kind is unknown.
    """
    if kind not in PLAIN:
        raise unknown("hstu", "input", kind, PLAIN)
    generator = drawn_on(device, seed)

    def tensor(rows: int, size: int) -> Tensor:
        return PLAIN[kind](torch.empty((rows, case.nheads, size), dtype=torch_dtype(case), device=device), generator)

    def whole(numbers: Iterable[int]) -> Tensor:
        return torch.tensor(list(numbers), dtype=torch.int64, device=device)

    queries, keys = ([getattr(shape, name) for shape in case.sequences] for name in ("queries", "length"))
    targets = [shape.targets for shape in case.sequences]
    return HstuInputs(
        q=tensor(sum(queries), case.attn_dim),
        k=tensor(sum(keys), case.attn_dim),
        v=tensor(sum(keys), case.linear_dim),
        gates=tensor(sum(queries), len(case.branches)).sigmoid_() if case.gates else None,
        dout=tensor(sum(queries), case.linear_dim) if case.has_backward else None,
        seq_offsets=whole(accumulate(keys, initial=0)),
        seq_offsets_q=whole(accumulate(queries, initial=0)),
        num_targets=whole(targets) if any(targets) else None,
        max_seqlen=max(keys),
        max_seqlen_q=max(queries),
    )
