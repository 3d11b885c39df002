"""Elementwise and row-wise operations of a model: in torch, or by attnbench's kernels in one launch each.

A model on a GPU uses the kernels, elsewhere torch.  The reference result, in fp64, is always computed by torch.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnbench.kernels.hstu.arguments import Parts
from attnbench.kernels.shared.card import takes_compiled


class Operations(Protocol):
    """Arguments and results are tensors [rows, columns] in the model's precision."""

    name: str
    joins: bool
    "whether `gate` also accepts attention in parts, and SiLU may be left to the append (`attention.Paged`)"

    def embed(self, ids: Tensor, positions: Tensor, table: Tensor, places: Tensor) -> Tensor:
        """Token embeddings with positions: x √d + P."""

    def norm(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """LN(x)."""

    def silu(self, x: Tensor) -> Tensor:
        """SiLU; x may be overwritten."""

    def gate(self, a: Tensor | Parts, u: Tensor, norm: nn.LayerNorm, whole: bool, count: Tensor | None) -> Tensor:
        """LN(a) s with s = SiLU(u), or Meta's [s, a, LN(a) s].

        Rows of `a` from `count` [1] on are undefined.  Their results are not used, but must be finite on a GPU, where
        kernels may read beyond a sequence and multiply by 0.
        """

    def add(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """x + y Wᵀ; x may be overwritten."""

    def unit(self, x: Tensor, rows: Tensor) -> Tensor:
        """Gather rows and divide each by its norm."""

    def tower(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """ReLU(x) Wᵀ + b of x [rows, towers · before], with weights [towers, after, before] and biases [towers, after]."""


class Plain:
    """One torch operation for each step of a formula."""

    name = "torch"
    joins = False

    def embed(self, ids: Tensor, positions: Tensor, table: Tensor, places: Tensor) -> Tensor:
        """See `Operations`."""
        x = functional.embedding(ids, table).to(places.dtype)
        return x * x.shape[1] ** 0.5 + functional.embedding(positions, places)

    def norm(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """See `Operations`."""
        normed: Tensor = norm(x)
        return normed

    def silu(self, x: Tensor) -> Tensor:
        """See `Operations`."""
        return functional.silu(x)

    def gate(self, a: Tensor | Parts, u: Tensor, norm: nn.LayerNorm, whole: bool, count: Tensor | None) -> Tensor:
        """See `Operations`."""
        assert isinstance(a, Tensor)
        s = functional.silu(u)
        gated: Tensor = norm(a) * s
        return gated if whole else torch.cat([s, a, gated], dim=1)

    def add(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """See `Operations`."""
        return x + functional.linear(y, weight)

    def unit(self, x: Tensor, rows: Tensor) -> Tensor:
        """See `Operations`."""
        return functional.normalize(x.index_select(0, rows), dim=1, eps=1e-6)

    def tower(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """See `Operations`."""
        y = functional.relu(x).unflatten(1, (weight.shape[0], weight.shape[2])).transpose(0, 1)
        return torch.baddbmm(bias[:, None], y, weight.mT).transpose(0, 1).flatten(1)


class Fused:
    """One launch each, computed in fp32 and rounded once."""

    name = "triton"
    joins = True

    def embed(self, ids: Tensor, positions: Tensor, table: Tensor, places: Tensor) -> Tensor:
        """See `Operations`."""
        from attnbench.kernels.hstu.layer.api import embed

        return embed(ids, positions, table, places, scale=table.shape[1] ** 0.5)

    def norm(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """See `Operations`."""
        from attnbench.kernels.hstu.layer.api import norm as normed

        return normed(x, norm.weight, norm.bias, eps=norm.eps)

    def silu(self, x: Tensor) -> Tensor:
        """See `Operations`."""
        from attnbench.kernels.hstu.layer.api import silu

        return silu(x)

    def gate(self, a: Tensor | Parts, u: Tensor, norm: nn.LayerNorm, whole: bool, count: Tensor | None) -> Tensor:
        """See `Operations`."""
        from attnbench.kernels.hstu.layer.api import gate

        return gate(a, u, norm.weight, norm.bias, eps=norm.eps, whole=whole, count=count)

    def add(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """See `Operations`."""
        return x.addmm_(y, weight.t())  # in place: otherwise torch would first copy x

    def unit(self, x: Tensor, rows: Tensor) -> Tensor:
        """See `Operations`."""
        from attnbench.kernels.hstu.layer.api import pick

        return pick(x, rows, eps=1e-6)

    def tower(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """See `Operations`."""
        from attnbench.kernels.hstu.layer.api import tower

        return tower(x, weight, bias)


PLAIN, FUSED = Plain(), Fused()


def operations_of(weight: Tensor) -> Operations:
    """The default of a model with such weights: the kernels on a GPU in a precision they support, otherwise torch."""
    return FUSED if takes_compiled(weight) and weight.dtype.itemsize <= 4 else PLAIN
