"""A block-sparse HSTU call: its tensors and its workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnbench.kernels.hstu.arguments import RowStrides, Sequences
from attnbench.kernels.hstu.bsa.plan import BsaConfig, Shapes, forward_shapes, saved_shapes
from attnbench.kernels.hstu.bsa.problem import BsaProblem
from attnbench.kernels.shared.card import capability_of
from attnbench.kernels.shared.hopper import is_rows


@dataclass(frozen=True, kw_only=True)
class BsaCall:
    """One call: inputs, results, workspace."""

    problem: BsaProblem
    config: BsaConfig
    q: Tensor
    "[queries, H, D], any strides of rows and heads, also for k and v"
    k: Tensor
    v: Tensor
    gates: Tensor | None
    "contiguous [queries, H, branches]"
    offsets: Tensor
    offsets_q: Tensor | None
    num_targets: Tensor | None
    out: Tensor
    "contiguous [queries, H, Dv]"
    blocks: Tensor
    "int32 [queries, H or 1, S]: the selection, ascending, padded with -1"
    workspace: Mapping[str, Tensor]
    "shapes as in `saved_shapes` and `forward_shapes`"

    @cached_property
    def sequences(self) -> Sequences:
        """Where the sequences lie; missing tensors are replaced by a pointer that is not read."""
        return Sequences(
            offsets_ptr=self.offsets,
            offsets_q_ptr=first_of(self.offsets_q, self.offsets),
            num_targets_ptr=first_of(self.num_targets, self.offsets),
        )

    def strides(self, *names: str) -> dict[str, RowStrides]:
        """Strides of tensors by name."""
        return {name: RowStrides.of(getattr(self, name)) for name in names}

    def flags(self) -> dict[str, Any]:
        """Compile-time constants that all kernels share."""
        p = self.problem
        return {"BLOCK_SIZE": p.block_size, "HAS_TARGETS": p.has_targets, "HAS_CACHE": p.has_cache}

    def dims(self) -> dict[str, int]:
        """Dims, and tile columns, as compile-time constants."""
        p = self.problem
        return {"ATTN_DIM": p.attn_dim, "LINEAR_DIM": p.linear_dim, "BLOCK_D": p.block_d, "BLOCK_V": p.block_v}

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability of the card; None for CPU tensors."""
        return capability_of(self.q)

    def require(self, who: str, fault: str | None) -> None:
        """Refuse what a Hopper kernel does not support.

        Raises:
            ValueError: there is a fault, or `hopper.is_rows` does not accept q, k or v; the message says which.
        """
        if fault:
            raise ValueError(f"{who}: {fault}; another kernel")
        for name, x in (("q", self.q), ("k", self.k), ("v", self.v)):
            if x.numel() and not is_rows(x):
                raise ValueError(
                    f"{who}: {name}.stride={x.stride()} is not a multiple of 16 bytes; an aligned tensor, or "
                    "another kernel"
                )

    def tensors(self, *names: str) -> dict[str, Tensor]:
        """Pointers by name, from the call or its workspace."""
        return {f"{name}_ptr": getattr(self, name) if hasattr(self, name) else self.workspace[name] for name in names}

    def factors(self) -> dict[str, float]:
        """Numbers of the attention function."""
        return {"half_alpha": self.problem.alpha / 2, "scale": 1 / self.problem.scaling_seqlen}


def allocate(shapes: Shapes, device: torch.device) -> dict[str, Tensor]:
    """Allocate tensors of these shapes."""
    return {name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()}


def forward_workspace(problem: BsaProblem, config: BsaConfig, device: torch.device) -> dict[str, Tensor]:
    """Allocate all workspace of `forward`."""
    return allocate(saved_shapes(problem, config) | forward_shapes(problem, config), device)


def options_of(warps: int, stages: int, registers: int | None = None) -> dict[str, int]:
    """Compiler options of a kernel; `registers` is the limit per thread, None: the compiler's choice."""
    return {"num_warps": warps, "num_stages": stages} | ({} if registers is None else {"maxnreg": registers})


def with_meta(kind: Any, **given: Any) -> dict[str, Any]:
    """Kernel arguments with the compile-time constants moved into a META of this type."""
    meta = kind(**{field: given[field] for field in kind._fields})
    return {name: value for name, value in given.items() if name not in kind._fields} | {"META": meta}


def first_of(tensor: Tensor | None, otherwise: Tensor) -> Tensor:
    """The tensor, or if it is None a pointer that is not read."""
    return otherwise if tensor is None else tensor
