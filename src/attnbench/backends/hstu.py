"""Base classes of the adapters for HSTU attention: common refusals, and jagged sequences as padded tensors.

`Operands` is a session's own copy of the inputs.  `Padded` knows where the rows of the jagged tensors
are in padded ones [B, H, N, D], and which keys a query sees there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend, Launch, Machine, require
from attnbench.backends.differentiable import launch
from attnbench.errors import Unsupported
from attnbench.workloads.hstu.case import HstuCase

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.hstu.inputs import HstuInputs


class HstuBackend(Backend[HstuCase, "HstuInputs"]):
    """An adapter for the workload `hstu`; the variant is dense unless a subclass sets another."""

    workload = "hstu"
    variant = "hstu"

    def check(self, case: HstuCase, machine: Machine) -> None:
        """Refuse cases for which the variant is not defined.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if self.variant == "hstu-bsa" and case.sparse_refusal is not None:
            raise Unsupported(case.sparse_refusal)

    def limit(self, case: HstuCase, **most: int) -> None:
        """Refuse axes above the limits of the kernels.

        Raises:
            Unsupported: naming the first such axis.
        """
        self.take(case, *((name, getattr(case, name) <= most[name], f"at most {most[name]}") for name in most))

    def take(self, case: HstuCase, *fields: tuple[str, bool, str]) -> None:
        """Refuse values of fields that are not supported.

        Args:
            case: the problem.
            fields: for each its name, whether its value is supported, and which values are.

        Raises:
            Unsupported: naming the first field that is not supported.
        """
        for name, fits, accepted in fields:
            written = str(getattr(case, name)).lower()  # as a suite spells it: true, none
            require(self.name, (fits, name, written, "is not supported", accepted))


class Operands:
    """q, k, v (and gates, if block-sparse) of one session, packed as in the workload, and dout.

    In a mode with a backward all but dout are leaves that require gradients.
    """

    def __init__(self, case: HstuCase, inputs: HstuInputs, *, gates: bool = False) -> None:
        tensors = inputs.tensors()
        names = ("q", "k", "v", "gates") if gates and "gates" in tensors else ("q", "k", "v")
        self.mode: str = case.mode
        self.own = {name: tensors[name].detach().clone().requires_grad_(case.has_backward) for name in names}
        self.dout = tensors["dout"].clone() if case.has_backward else None

    def launch(
        self, fn: Callable[..., Tensor], *, choices: Callable[[], Mapping[str, Tensor]] = dict, **options: Any
    ) -> Launch:
        """Wrap ``fn(q, k, v[, gates]) -> out``; see `differentiable.launch`."""
        operands = tuple(self.own.values())
        leaves = {f"d{name}": tensor for name, tensor in self.own.items()}
        return launch(
            lambda: fn(*operands), leaves, self.dout, mode=self.mode, load=self._load, choices=choices, **options
        )

    def _load(self, inputs: HstuInputs) -> None:
        import torch

        new = inputs.tensors()
        with torch.no_grad():
            for name, tensor in self.own.items():
                tensor.copy_(new[name])
            if self.dout is not None:
                self.dout.copy_(new["dout"])


class Padded:
    """Converts jagged tensors [T, H, D] to padded ones [B, H, N, D] with zeros after each sequence."""

    def __init__(self, case: HstuCase, inputs: HstuInputs) -> None:
        import torch

        device, self.case = inputs.q.device, case
        self.batch, self.queries, self.keys = case.batch, inputs.max_seqlen_q, inputs.max_seqlen

        def column(*numbers: int) -> Tensor:
            return torch.tensor(numbers, device=device)[:, None, None]

        shapes = case.sequences
        self.prefix = column(*(shape.prefix for shape in shapes))
        self.seen = column(*(shape.seen for shape in shapes))
        self.first = column(*(shape.first_query for shape in shapes))
        self.position = torch.arange(self.queries, device=device)[:, None] + self.first
        "of each query among the keys of its sequence [B, queries, 1]"
        self.key = torch.arange(self.keys, device=device)
        self._of_queries = _places([shape.queries for shape in shapes], self.queries).to(device)
        self._of_keys = _places([shape.length for shape in shapes], self.keys).to(device)

    def pad(self, x: Tensor, *, queries: bool = False) -> Tensor:
        """Pad the sequences to equal length, heads first."""
        rows, places = (self.queries, self._of_queries) if queries else (self.keys, self._of_keys)
        padded = x.new_zeros(self.batch * rows, *x.shape[1:]).index_copy(0, places, x)
        return padded.unflatten(0, (self.batch, rows)).transpose(1, 2)

    def jagged(self, x: Tensor) -> Tensor:
        """Extract the queries [Tq, H, D] from [B, H, queries, D]."""
        return x.transpose(1, 2).flatten(0, 1)[self._of_queries]

    def visible(self) -> Tensor:
        """Return which keys the dense function lets a query see, bool [B, 1, queries, keys]."""
        case, row, key = self.case, self.position, self.key
        of_prefix = row < self.prefix
        seen = key < self.seen
        if case.causal:
            seen = seen & ((key <= row) | of_prefix)
        if case.max_attn_len is not None:
            back = self._for_window(row) - self._for_window(key)
            near = back <= case.max_attn_len
            seen = seen & ((near if case.causal else near & (-back <= case.max_attn_len)) | of_prefix)
        return (seen | (key == row))[:, None]

    def _for_window(self, row: Tensor) -> Tensor:
        """Count the prefix as one position before the history, and the targets as one after it."""
        place = row.minimum(self.seen)
        return (place - (self.prefix - 1).clamp(min=0)).clamp(min=0)


def _places(lengths: list[int], rows: int) -> Tensor:
    """Return the index of each jagged row among `rows` padded ones per sequence."""
    import torch

    parts = [torch.arange(length) + number * rows for number, length in enumerate(lengths)]
    return torch.cat(parts)
