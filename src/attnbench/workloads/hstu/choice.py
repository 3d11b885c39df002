"""The blocks selected by a launch of the block-sparse variant: how the checker judges and follows them.

The output `blocks` is int32 [Tq, H, S] ([Tq, 1, S] if the heads share one selection): the blocks of
each query in any order, -1 for none, S the case's block_counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import oracle_bsa, rounding
from attnbench.workloads.hstu.case import HstuCase
from attnbench.workloads.hstu.inputs import HstuInputs


class BlockChoice:
    """A selection; it is right if every block deserves its place by score, within rounding."""

    followed = "chose other blocks than the oracle, as good within rounding: compared with what follows from its choice"

    def faults(self, case: HstuCase, inputs: HstuInputs, chosen: Tensor) -> Sequence[str]:
        """Return the faults of a selection; `oracle_bsa.selection_faults` says what is accepted."""
        if chosen.dtype.is_floating_point or chosen.dtype == torch.bool:
            return [f"dtype={chosen.dtype} is wrong; torch.int32"]
        return oracle_bsa.selection_faults(case, inputs, chosen)

    def is_oracles(self, case: HstuCase, inputs: HstuInputs, chosen: Tensor) -> bool:
        """Return whether these are the oracle's blocks, in any order."""
        own = oracle_bsa.select_blocks(case, inputs).long()
        return torch.equal(own.sort(2).values, chosen.long().sort(2).values)

    def follow(
        self, case: HstuCase, inputs: HstuInputs, chosen: Tensor, *, dtype: torch.dtype, draw: Draw
    ) -> dict[str, Tensor]:
        """Return the block-sparse function with these blocks."""
        return oracle_bsa.evaluate(case, inputs, dtype=dtype, draw=draw, blocks=chosen)

    def expected_errors(self, case: HstuCase, inputs: HstuInputs, chosen: Tensor, *, draw: Draw) -> dict[str, Tensor]:
        """Return those of the oracle's own blocks: other choices have as many blocks of equal scores within rounding."""
        return rounding.expected_errors_bsa(case, inputs, draw=draw)

    def measures(
        self, case: HstuCase, inputs: HstuInputs, chosen: Tensor, *, dtype: torch.dtype, draw: Draw
    ) -> Mapping[str, float]:
        """Return nothing: a choice without faults is as good as the oracle's."""
        return {}
