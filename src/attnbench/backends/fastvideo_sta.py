"""``fastvideo-sta``: FastVideo's sliding tile attention, the ThunderKittens kernel for Hopper.

It takes no map, but a window in tiles of 6x8x8 tokens on one of the grids it was compiled for.  So it only runs the
pattern `sta`.  One call launches a kernel and copies q, k and v for every head.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch, Machine
from attnbench.backends.fastvideo_vsa import INSTALL, compiled
from attnbench.backends.sparse import SparseBackend, SparseLimits
from attnbench.errors import Unsupported, refusal
from attnbench.workloads.sparse.patterns import tile_window

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.sparse.case import SparseCase
    from attnbench.workloads.sparse.inputs import SparseInputs

GRIDS = {"36:48:48": "36x48x48", "18:48:80": "18x48x80"}
"Grids that were compiled for videos without text."


class FastVideoSta(SparseBackend):
    """Head dim 128 only: with any other the library launches nothing and returns unwritten memory."""

    name = "fastvideo-sta"
    title = "FastVideo STA"
    tested = "NVIDIA H200, torch 2.11"
    install = INSTALL
    module = "fastvideo_kernel.ops"
    distribution = "fastvideo-kernel"
    compiles = True
    follows = False
    limits = SparseLimits(dtypes=("bf16",), headdims=(128,), capability=(9, 0), capability_below=(10, 0))

    def check(self, case: SparseCase, machine: Machine) -> None:
        """Refuse all windows but those it was written for.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if case.pattern != "sta":
            raise Unsupported(refusal(self.name, "pattern", case.pattern, "is no window of tiles", "sta"))
        if case.grid not in GRIDS:
            raise Unsupported(refusal(self.name, "grid", case.grid, "is not compiled", f"one of {', '.join(GRIDS)}"))

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D], tokens in tile order."""
        library = importlib.import_module("fastvideo_kernel.ops")
        compiled(self.name, "sta_fwd")
        window, shape = tile_window(case), GRIDS[case.grid or ""]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = library.sliding_tile_attention(q, k, v, [window] * case.nheads, 0, False, shape)
            return out

        yield self.launch(case, inputs, attend, notes=(f"window {'x'.join(map(str, window))} tiles",))
