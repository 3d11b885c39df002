"""``hstu-bsa-triton``: our block-sparse HSTU attention; pooling, ranking and lists are part of the call.

A configuration changes one of the two kernels that take most of the time: for Hopper (``…-ws``), or portable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch, Machine
from attnbench.backends.hstu import HstuBackend
from attnbench.backends.our_triton import OurTriton
from attnbench.errors import Unsupported
from attnbench.workloads.hstu.case import HstuCase

if TYPE_CHECKING:
    from attnbench.kernels.hstu.bsa.family import Shape
    from attnbench.kernels.shared.family import Family
    from attnbench.workloads.hstu.inputs import HstuInputs


class HstuBsaTriton(OurTriton[HstuCase, "HstuInputs"], HstuBackend):
    """Five kernels forward, three backward; a call allocates its results and workspace."""

    name = "hstu-bsa-triton"
    title = "HSTU block-sparse, ours (Triton)"
    tested = "NVIDIA H200, torch 2.11"
    variant = "hstu-bsa"

    def check(self, case: HstuCase, machine: Machine) -> None:
        """Refuse what the kernels do not take; `Unsupported` names the field, its value and what is accepted."""
        if case.block_size not in (16, 32, 64, 128):
            raise Unsupported(f"{self.name}: block_size={case.block_size} is not supported; one of 16, 32, 64, 128")
        self.limit(case, block_counts=16, attn_dim=256, linear_dim=256)
        super().check(case, machine)

    def family(self) -> Family[Shape]:
        """Family of its launch configurations."""
        from attnbench.kernels.hstu.bsa.family import FAMILY

        return FAMILY

    def shape(self, case: HstuCase, capability: tuple[int, int]) -> Shape:
        """What its configurations depend on."""
        from attnbench.kernels.hstu.bsa.family import shape_of

        return shape_of(**case.to_dict(), capability=capability)

    @contextmanager
    def session(self, case: HstuCase, inputs: HstuInputs) -> Iterator[Launch]:
        """Use own copies of the inputs."""
        from attnbench.backends.hstu_bsa_triton_call import BsaSession

        yield BsaSession(case, inputs, {} if self.config is None else self.config.values, self.name).launch()
