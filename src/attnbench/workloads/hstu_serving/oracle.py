"""The right answer: the model in `dtype`, over whole histories, without any cache."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attnbench.models.hstu_ranking.attention import Reference, Sequences
from attnbench.workloads.hstu_serving.inputs import ServingInputs


def evaluate(inputs: ServingInputs, *, dtype: torch.dtype, unseen: int = 0) -> dict[str, Tensor]:
    """Logits of all candidates.

    Args:
        inputs: of the case.
        dtype: to compute in.
        unseen: so many first tokens of each history are hidden from the rows behind them: a well-known wrong answer.

    Returns:
        out [batch · num_candidates, tasks].
    """
    model = inputs.model.in_precision(dtype)
    attention = partial(_Blind, unseen) if unseen else Reference
    # A user at a time: users do not see each other, and results are then the same in any batch.
    return {"out": torch.cat([model([request], attention=attention) for request in inputs.requests()])}


class _Blind(Reference):
    """Rows behind the cached tokens do not see these."""

    def __init__(self, unseen: int, sequences: Sequences) -> None:
        super().__init__(sequences)
        self.unseen = unseen

    def attend(self, pool: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        whole = super().attend(pool, q, k, v)
        given = self.sequences
        (new,), (targets,) = given.new, given.targets
        behind = Reference(
            Sequences(
                given.table,
                [0],
                [new - self.unseen],
                [targets],
                given.pages,
                given.page_size,
                given.alpha,
                given.scaling_seqlen,
            )
        )
        after = slice(self.unseen, None)
        return torch.cat([whole[: self.unseen], behind.attend(None, q[after], k[after], v[after])])
