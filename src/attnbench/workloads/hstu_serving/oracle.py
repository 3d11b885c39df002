"""The oracle: the model in `dtype`, over whole histories, without any cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from attnbench.models.hstu_ranking.attention import Reference, Sequences
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu_serving.inputs import ServingInputs
from attnbench.workloads.hstu_serving.parts import WHOLE, drawn_of
from attnbench.workloads.hstu_serving.visits import Visit

_ANSWERS: WeakKeyDictionary[ServingInputs, dict[tuple[torch.dtype, Draw], Tensor]] = WeakKeyDictionary()
"Logits of earlier evaluations.  Not in the inputs: backends are given these, and could return, change or see what is drawn."


def evaluate(
    inputs: ServingInputs, *, dtype: torch.dtype, draw: Draw = WHOLE, unseen: Callable[[Visit], int] | None = None
) -> dict[str, Tensor]:
    """Compute the logits of all candidates of the requests.

    The answer is kept as long as the inputs: the check and `rounding.py` need the same one, at the price of a draw of errors.

    Args:
        inputs: of the case.
        dtype: to compute in.
        draw: of the requests.
        unseen: returns how many first tokens of a visit's history are hidden from later rows, for a well-known wrong
            answer; None: none are hidden.

    Returns:
        out [requests · num_candidates, tasks].
    """
    if unseen is not None:
        return {"out": logits(inputs.model.in_precision(dtype), inputs, draw=draw, unseen=unseen)}
    key, answers = (dtype, draw), _ANSWERS.setdefault(inputs, {})
    if key not in answers:
        answers[key] = logits(inputs.model.in_precision(dtype), inputs, draw=draw)
    return {"out": answers[key]}


def logits(
    model: HstuRanking, inputs: ServingInputs, *, draw: Draw = WHOLE, unseen: Callable[[Visit], int] | None = None
) -> Tensor:
    """Compute what `evaluate` does, by a model that is in the precision already."""
    visits = [visit for step in inputs.case.steps for visit in step]
    # One request at a time: users do not see each other, and results are then independent of the batch.
    found = []
    for number, request in drawn_of(inputs.requests(), draw):
        hidden = unseen(visits[number]) if unseen else 0
        found.append(model([request], attention=partial(_Blind, hidden) if hidden else Reference))
    return torch.cat(found)


class _Blind(Reference):
    """Rows after the cached tokens do not see these."""

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
