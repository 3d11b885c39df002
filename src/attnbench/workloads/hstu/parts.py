"""Which part of a case is compared, and the layout of the parts of its tensors.

A pair is (sequence, head) and includes all its queries, keys and values.  Layouts:

    name     whole (no draw)       drawn pairs, concatenated
    out      [Tq, H, Dv]           [Σ queries of the pairs, Dv]
    dq       [Tq, H, D]            [Σ queries of the pairs, D]
    dk, dv   [Tk, H, D], [.., Dv]  [Σ keys of the pairs, D], [.., Dv]
    dgates   [Tq, H, branches]     [Σ queries of the pairs, branches]   (block-sparse with gates only)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from attnbench.workloads.attention.parts import ITEM_BYTES, SCORES, UNIT, WORKSPACE, workspace_on
from attnbench.workloads.base import Draw, in_layout
from attnbench.workloads.drawing import Part, draw_parts
from attnbench.workloads.hstu.case import HstuCase
from attnbench.workloads.hstu.lengths import SequenceShape

__all__ = ["ITEM_BYTES", "SCORES", "WORKSPACE", "workspace_on"]

QUERY_SIDE = ("q", "gates", "dout", "out", "dq", "dgates")
"Tensors with one row per query; all others have one row per key."


def output_names(case: HstuCase, variant: str) -> tuple[str, ...]:
    """Names of the outputs of a launch of this variant."""
    if not case.has_backward:
        return ("out",)
    return ("out", "dq", "dk", "dv") + ("dgates",) * (variant == "hstu-bsa" and case.gates)


def output_shapes(case: HstuCase, variant: str, draw: Draw | None = None) -> dict[str, tuple[int, ...]]:
    """Shape of each output: whole, or of the pairs of a draw."""
    sizes = {
        "out": case.linear_dim,
        "dq": case.attn_dim,
        "dk": case.attn_dim,
        "dv": case.linear_dim,
        "dgates": len(case.branches),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name in output_names(case, variant):
        if draw is None or draw.parts is None:
            shapes[name] = (sum(rows_of(shape, name) for shape in case.sequences), case.nheads, sizes[name])
        else:
            shapes[name] = (sum(rows_of(case.sequences[s], name) for s, _ in draw.parts), sizes[name])
    return shapes


def rows_of(shape: SequenceShape, name: str) -> int:
    """Number of rows of a sequence in a tensor."""
    return shape.queries if name in QUERY_SIDE else shape.length


def pairs_of(case: HstuCase, draw: Draw) -> Sequence[Part]:
    """The pairs of a draw, or all of the case."""
    return list(product(range(case.batch), range(case.nheads))) if draw.parts is None else draw.parts


def by_sequence(case: HstuCase, name: str, tensor: Tensor) -> Sequence[Tensor]:
    """Return views [rows, H, size] of a whole tensor, one per sequence."""
    return tensor.split([rows_of(shape, name) for shape in case.sequences])


def pieces(case: HstuCase, name: str, tensor: Tensor, draw: Draw) -> list[Tensor]:
    """Return views [rows, size] of a whole tensor, one per pair."""
    views = by_sequence(case, name, tensor)
    return [views[s][:, head] for s, head in pairs_of(case, draw)]


def result_pieces(case: HstuCase, name: str, tensor: Tensor, draw: Draw) -> Sequence[Tensor]:
    """Like `pieces`, for a tensor in the layout of `output_shapes` for this draw."""
    if draw.parts is None:
        return pieces(case, name, tensor, draw)
    return tensor.split([rows_of(case.sequences[s], name) for s, _ in draw.parts])


def select(case: HstuCase, outputs: Mapping[str, Tensor], draw: Draw) -> dict[str, Tensor]:
    """Extract the drawn pairs from whole outputs; without a draw, return the outputs.

    Names that no variant of the case or `outputs` has are skipped.

    Raises:
        AttnbenchError: an output is not in the workload's layout.
    """
    whole = in_layout(case.id, outputs, output_shapes(case, "hstu-bsa"))
    if draw.parts is None:
        return whole
    return {name: torch.cat(pieces(case, name, tensor, draw)) for name, tensor in whole.items()}


def choose(case: HstuCase, *, seed: int, max_bytes: int) -> Draw:
    """Return all pairs if the case's fp64 oracle fits in `max_bytes`, else as many drawn pairs as fit.

    This counts the result in fp64 and the oracle's workspace, as in softmax attention.  The corners are
    always included: first, last, shortest and longest sequence, each with the first and the last head.
    """
    everything = list(product(range(case.batch), range(case.nheads)))
    workspace = min(WORKSPACE, max_bytes // 2, sum(_work_bytes(case.sequences[s]) for s, _ in everything))
    order = range(case.batch)
    extremes = {pick(order, key=lambda s: case.sequences[s].length) for pick in (min, max)}
    corners = set(product({0, case.batch - 1} | extremes, {0, case.nheads - 1}))
    return draw_parts(
        everything,
        corners,
        unit=UNIT,
        key=f"attnbench hstu draw 1 {case.id} {seed}",
        max_bytes=max_bytes - workspace,
        result_bytes=partial(_result_bytes, case),
    )


def _work_bytes(shape: SequenceShape) -> int:
    return ITEM_BYTES * SCORES * shape.queries * shape.length


def _result_bytes(case: HstuCase, pair: Part) -> int:
    shape = case.sequences[pair[0]]
    items = shape.queries * case.linear_dim
    if case.has_backward:
        items += shape.queries * (case.attn_dim + len(case.branches) * case.gates)
        items += shape.length * (case.attn_dim + case.linear_dim)
    return ITEM_BYTES * items
