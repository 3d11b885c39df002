"""The map used by a launch of the variant `chosen`: how the checker judges and follows it.

The output `block_map` is bool [B, H, ⌈Sq/bq⌉, ⌈Sk/bk⌉] in the case's blocks.  A predictor may keep any blocks:
its output is right if it is attention over that map.  How good the map is, is reported in the record's
counters (`measures`) and decides no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from attnbench.workloads.base import Draw
from attnbench.workloads.sparse import oracle
from attnbench.workloads.sparse.case import SparseCase
from attnbench.workloads.sparse.inputs import SparseInputs
from attnbench.workloads.sparse.rounding import expected_errors
from attnbench.workloads.sparse.work import dense_flops, queries_seen, work_of


class ChosenMap:
    """A launch's map: any that leaves each query a key; with `widen` also one that keeps all blocks of the case's map."""

    followed = "compared with attention over the map that it used"

    def faults(self, case: SparseCase, inputs: SparseInputs, chosen: Tensor) -> Sequence[str]:
        """Return the faults of the map."""
        shape = (case.batch, case.nheads, *case.blocks)
        if tuple(chosen.shape) != shape:
            return [f"shape={list(chosen.shape)} is wrong; {list(shape)}"]
        if chosen.dtype != torch.bool:
            return [f"dtype={chosen.dtype} is wrong; torch.bool"]
        lost = int((inputs.block_map & ~chosen).sum())
        if case.widen and not lost:  # rounded up from a map that may leave queries without keys
            return []
        # Predicted: one that leaves queries without keys would gain speed by doing so.
        there = queries_seen(case, np.ones(shape, dtype=np.bool_))
        if left_out := there - queries_seen(case, chosen.cpu().numpy()):
            if case.widen:
                return [f"leaves out {lost} of the {int(inputs.block_map.sum())} blocks that the case's map keeps"]
            return [f"leaves {left_out} of {there} queries without a visible key"]
        return []

    def is_oracles(self, case: SparseCase, inputs: SparseInputs, chosen: Tensor) -> bool:
        """Return whether it keeps every block, as the oracle does."""
        return bool(chosen.all())

    def follow(
        self, case: SparseCase, inputs: SparseInputs, chosen: Tensor, *, dtype: torch.dtype, draw: Draw
    ) -> dict[str, Tensor]:
        """Return attention over that map."""
        return oracle.evaluate(case, inputs, dtype=dtype, draw=draw, blocks=chosen)

    def expected_errors(
        self, case: SparseCase, inputs: SparseInputs, chosen: Tensor, *, draw: Draw
    ) -> dict[str, Tensor]:
        """Return the errors of a correct evaluation of that map."""
        return expected_errors(case, inputs, draw=draw, blocks=chosen)

    def measures(
        self, case: SparseCase, inputs: SparseInputs, chosen: Tensor, *, dtype: torch.dtype, draw: Draw
    ) -> Mapping[str, float]:
        """Return the cost and the quality of the map.

        Returns:
            useful_flops and least_bytes of the map; density, of visible pairs; actual_sparsity, 1 - density;
            mass_kept, the share of the dense problem's softmax in kept blocks, mean over the drawn rows;
            dense_rel_l1, the distance Σ|x - dense| / Σ|dense| of this map's right output from dense attention.
        """
        work = work_of(case, chosen.cpu().numpy())
        share = work.flops / max(dense_flops(case), 1)
        whole = torch.ones_like(chosen)
        lse, dense_lse = (
            oracle.log_sum_exp(case, inputs, dtype=dtype, draw=draw, blocks=blocks) for blocks in (chosen, whole)
        )
        kept = (lse - dense_lse).exp()[dense_lse > -torch.inf]
        out, dense_out = (
            oracle.evaluate(case, inputs, dtype=dtype, draw=draw, blocks=blocks)["out"] for blocks in (chosen, whole)
        )
        total = dense_out.abs().sum()
        apart = (out - dense_out).abs().sum() / total if total else total
        return {
            "useful_flops": work.flops,
            "least_bytes": work.bytes,
            "density": share,
            "actual_sparsity": 1 - share,
            "mass_kept": float(kept.mean()) if kept.numel() else 1.0,
            "dense_rel_l1": float(apart),
        }
