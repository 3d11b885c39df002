"""``sparge-fp8``: SpargeAttn with P V in e4m3, over a given (`block_sparse_sage2_attn_cuda`) or predicted map.

With a causal mask its kernels hide only whole blocks (on this path all are launched without a mask): queries on the
diagonal see later keys of their block.  So causal is refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Budget, Config, Launch, Machine, require
from attnbench.backends.sparge_call import SpargeBackend, machine_of
from attnbench.backends.sparse import is_exact, resized

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.sparse.case import SparseCase
    from attnbench.workloads.sparse.inputs import SparseInputs


class SpargeFp8(SpargeBackend):
    """P V in e4m3; on Hopper blocks of 64x128."""

    name = "sparge-fp8"
    title = "SpargeAttn, fp8 PV"
    tested = "NVIDIA H200, torch 2.11"
    functions = "spas_sage2_attn_meansim_cuda", "spas_sage2_attn_meansim_topk_cuda"

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        self.variant = "chosen" if config else "given"  # type: ignore[misc]  # with thresholds it predicts

    def own_block(self, machine: Machine) -> tuple[int, int]:
        """Return the block size, which differs on Hopper."""
        return (64, 128) if machine.capability and machine.capability[0] == 9 else (128, 64)

    def budget(self, case: SparseCase) -> Budget:
        """Also P and V in e4m3: emulated 0.040 on normal values and on outliers."""
        return Budget(relative=0.5, rel_l1=0.065, head_rel_l1=0.08)

    def check(self, case: SparseCase, machine: Machine) -> None:
        """Refuse a causal mask, which hides only whole blocks, and a given map that the card's blocks cannot represent.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        native = self.own_block(machine)
        own = f"blocks of {native[0]}x{native[1]}"
        later = "hides whole blocks only: queries see later keys of their block"
        partly = f"does not fit {own}: the map keeps some of them in part"
        fits = bool(self.config) or is_exact(case, native)
        require(
            self.name,
            (not case.causal, "causal", case.causal, later, "false; sparge takes it"),
            (fits, "block", case.block, partly, f"a map of {own}, or of larger ones"),
        )

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Use the given map, or a predicted one."""
        core = importlib.import_module("spas_sage_attn.core")
        if self.config:
            yield self.predicting(case, inputs, core)
            return

        native = self.own_block(machine_of(inputs))
        made: dict[str, Tensor] = {}

        def convert(blocks: Tensor) -> None:
            made["map"] = resized(blocks, case, case.block_shape, native)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = core.block_sparse_sage2_attn_cuda(
                q, k, v, mask_id=made["map"], scale=case.scale, tensor_layout="HND"
            )
            return out

        yield self.launch(case, inputs, attend, convert=convert, capturable=False)
