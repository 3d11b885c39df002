"""Well-known wrong answers, so that the checker can say what a backend computed instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import oracle, oracle_bsa, parts
from attnbench.workloads.hstu.case import HstuCase
from attnbench.workloads.hstu.inputs import HstuInputs
from attnbench.workloads.hstu.work import visible_pairs


def suspects(
    variant: str, case: HstuCase, inputs: HstuInputs, *, draw: Draw
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield (description, outputs in fp32) for each mistake that would change the answer of this case."""
    evaluate = oracle.evaluate if variant == "hstu" else oracle_bsa.evaluate
    # Fixed, because drawn lengths would change with the targets.
    case = replace(case, lengths=":".join(str(shape.length) for shape in case.sequences))
    for words, bent in _bent(case):
        if variant == "hstu-bsa" and bent.sparse_refusal is not None:
            continue
        if (bent.alpha, bent.scaling_seqlen) != (case.alpha, case.scaling_seqlen) or _differ(variant, bent, case):
            yield words, evaluate(bent, inputs, dtype=torch.float32, draw=draw)
    if any(shape.length not in (0, case.scaling_seqlen) for shape in case.sequences):
        right = evaluate(case, inputs, dtype=torch.float32, draw=draw)
        yield "divided by each sequence's own length instead of one length for all", _by_own_length(case, right, draw)


def _bent(case: HstuCase) -> Iterator[tuple[str, HstuCase]]:
    yield "targets that see each other", replace(case, num_targets="0")
    yield "contextual prefix treated as history", replace(case, contextual_len=0)
    yield "window (max_attn_len) ignored", replace(case, max_attn_len=None)
    yield "causal mask ignored", replace(case, causal=False)
    yield "outputs not divided by the length", replace(case, scaling_seqlen=1)
    yield "alpha missing (1 instead of the factor of the scores)", replace(case, alpha=1.0)
    yield (
        "selection per head where it is shared, or shared where it is per head",
        replace(case, selection="head" if case.selection == "shared" else "shared"),
    )
    if case.pairs:
        yield "actions that select for themselves", replace(case, pairs=False)


def _differ(variant: str, bent: HstuCase, case: HstuCase) -> bool:
    if variant == "hstu":
        return bent.num_targets != case.num_targets or visible_pairs(bent) != visible_pairs(case)
    return any(getattr(bent, name) != getattr(case, name) for name in ("num_targets", "selection", "pairs"))


def _by_own_length(case: HstuCase, right: dict[str, Tensor], draw: Draw) -> dict[str, Tensor]:
    """Rescale: every output is proportional to the inverse divisor."""
    for name, tensor in right.items():
        for (number, _), piece in zip(
            parts.pairs_of(case, draw), parts.result_pieces(case, name, tensor, draw), strict=True
        ):
            piece *= case.scaling_seqlen / max(1, case.sequences[number].length)
    return right
