"""The block maps that a launch predicted in the layers of a step: how the checker judges and follows them.

The output `block_map` is bool [layers, B, H, ⌈S/bq⌉, ⌈S/bk⌉] in the case's blocks.  A predictor may keep any blocks:
a step is right if it is that of a model with these maps in its layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnbench.models.video.attention import Attend
from attnbench.workloads.base import Draw
from attnbench.workloads.sparse.work import dense_flops, work_of
from attnbench.workloads.video.case import VideoCase
from attnbench.workloads.video.inputs import VideoInputs
from attnbench.workloads.video.oracle import evaluator, with_maps
from attnbench.workloads.video.rounding import expected_errors_of
from attnbench.workloads.video.work import attention_flops, work


class ChosenMaps:
    """A map for each layer, chosen by a launch."""

    followed = "compared with a model with the maps that it used in its layers"

    def faults(self, case: VideoCase, inputs: VideoInputs, chosen: Tensor) -> Sequence[str]:
        """Return the faults of the maps."""
        one = case.sparse
        shape = (case.config.layers, one.batch, one.nheads, *one.blocks)
        if tuple(chosen.shape) != shape:
            return [f"shape={list(chosen.shape)} is wrong; {list(shape)}"]
        return [] if chosen.dtype == torch.bool else [f"dtype={chosen.dtype} is wrong; torch.bool"]

    def is_oracles(self, case: VideoCase, inputs: VideoInputs, chosen: Tensor) -> bool:
        """Return whether they keep every block, as the oracle does."""
        return bool(chosen.all())

    def follow(
        self, case: VideoCase, inputs: VideoInputs, chosen: Tensor, *, dtype: torch.dtype, draw: Draw
    ) -> dict[str, Tensor]:
        """Return the step of a model with these maps."""
        return evaluator(inputs, dtype=dtype, attend=_attend(case, chosen), first=draw.parts is not None)()

    def expected_errors(self, case: VideoCase, inputs: VideoInputs, chosen: Tensor, *, draw: Draw) -> dict[str, Tensor]:
        """Return the errors of a correct evaluation of that step."""
        return expected_errors_of(inputs, _attend(case, chosen), first=draw.parts is not None)

    def measures(
        self, case: VideoCase, inputs: VideoInputs, chosen: Tensor, *, dtype: torch.dtype, draw: Draw
    ) -> Mapping[str, float]:
        """Return the cost of the maps.

        Returns:
            useful_flops of the step with them, and least_bytes; density, of all layers' visible pairs;
            actual_sparsity, 1 - density.
        """
        one, whole = case.sparse, work(case)
        share = sum(work_of(one, blocks.cpu().numpy()).flops for blocks in chosen) / (len(chosen) * dense_flops(one))
        return {
            "useful_flops": whole.flops - round((1 - share) * attention_flops(case)),
            "least_bytes": whole.bytes,
            "density": share,
            "actual_sparsity": 1 - share,
        }


def _attend(case: VideoCase, chosen: Tensor) -> Attend:
    return with_maps(case.sparse, list(chosen))
