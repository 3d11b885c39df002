"""``hstu-compile``: `hstu-eager` under torch.compile, which fuses the operations between the two products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch
from attnbench.backends.compiled import compiled_alone
from attnbench.backends.hstu import HstuBackend, Operands
from attnbench.backends.hstu_eager import dense_attention

if TYPE_CHECKING:
    from attnbench.workloads.hstu.case import HstuCase
    from attnbench.workloads.hstu.inputs import HstuInputs


class HstuCompile(HstuBackend):
    """All scores are still stored."""

    name = "hstu-compile"
    title = "HSTU, torch.compile"
    install = "part of torch"
    devices = ("cpu", "cuda")
    compiles = True

    @contextmanager
    def session(self, case: HstuCase, inputs: HstuInputs) -> Iterator[Launch]:
        """Use jagged tensors; the first call compiles."""
        yield Operands(case, inputs).launch(compiled_alone(dense_attention(case, inputs)))
