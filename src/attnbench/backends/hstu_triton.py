"""``hstu-triton``: our dense HSTU attention; dQ by fp32 atomics unless the configuration says ``deterministic``.

A configuration is the forward's (``f128x128w8s2-ws``), the backward's (``a64x128w8s2-ws``, ``deterministic-…``) or both
(``f…+a…``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch, Machine
from attnbench.backends.hstu import HstuBackend
from attnbench.backends.our_triton import OurTriton
from attnbench.workloads.hstu.case import HstuCase

if TYPE_CHECKING:
    from attnbench.kernels.hstu.dense.family import Shape
    from attnbench.kernels.shared.family import Family
    from attnbench.workloads.hstu.inputs import HstuInputs


class HstuTriton(OurTriton[HstuCase, "HstuInputs"], HstuBackend):
    """A call allocates its results, and a tile counter."""

    name = "hstu-triton"
    title = "HSTU, ours (Triton)"
    tested = "NVIDIA H200, torch 2.11"

    def check(self, case: HstuCase, machine: Machine) -> None:
        """Refuse cases that the kernels do not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        self.limit(case, attn_dim=256, linear_dim=256)
        super().check(case, machine)

    def family(self) -> Family[Shape]:
        """Family of its launch configurations."""
        from attnbench.kernels.hstu.dense.family import FAMILY

        return FAMILY

    def shape(self, case: HstuCase, capability: tuple[int, int]) -> Shape:
        """What its configurations depend on."""
        from attnbench.kernels.hstu.dense.configs import triangle_grid
        from attnbench.kernels.hstu.dense.family import Shape

        return Shape(
            attn_dim=case.attn_dim,
            linear_dim=case.linear_dim,
            item_bytes=4 if case.dtype == "fp32" else 2,
            seqlen=case.seqlen,
            capability=capability,
            grid=triangle_grid(
                case.batch * case.nheads,
                case.seqlen,
                causal=case.causal,
                cached=case.delta_q is not None,
                windowed=case.max_attn_len is not None,
            ),
            pairs=case.batch * case.nheads,
        )

    @contextmanager
    def session(self, case: HstuCase, inputs: HstuInputs) -> Iterator[Launch]:
        """Use own copies of the inputs; results and workspace belong to the session."""
        from attnbench.backends.hstu_triton_call import HstuSession

        yield HstuSession(case, inputs, {} if self.config is None else self.config.values).launch()
