"""Which part of a case is compared, and the layout of the parts of its tensors.

A pair is (sequence, KV head) and includes every query of the sequence in every query
head of that KV head's group, and every key and value of the KV head.  Nothing smaller has a complete
dK and dV.  H query heads, G KV heads, R = H / G query heads per group, in two layouts:

    name        whole (no draw)                        drawn pairs, concatenated
    out         [B, Sq, H, Dv]  or packed [Tq, H, Dv]  [Σ Sq of the pairs, R, Dv]
    dq          [B, Sq, H, D]   or packed [Tq, H, D]   [Σ Sq of the pairs, R, D]
    dk          [B, Sk, G, D]   or packed [Tk, G, D]   [Σ Sk of the pairs, D]
    dv          [B, Sk, G, Dv]  or packed [Tk, G, Dv]  [Σ Sk of the pairs, Dv]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.base import Draw, in_layout
from attnbench.workloads.drawing import Part, draw_parts

UNIT = "(sequence, head) pairs"
"Name of a draw's parts, here and in HSTU attention."

WORKSPACE = 2**30
"Target limit of the oracle's intermediate results, bytes: at 131072 keys a chunk still has 160 rows, to keep a GPU busy."

CPU_WORKSPACE = 2**24
"The same on a CPU, where intermediates larger than the cache take about twice the time."

SHARE = 32
"The same on a small GPU: its memory divided by this."

ITEM_BYTES = 8
"Size of fp64, the widest precision of the oracle, for which memory is planned."

SCORES = 6
"Number of tensors of the size of the scores that a chunk of the oracle holds at once."

QUERY_SIDE = ("q", "dout", "out", "dq")
"Tensors with one row per query and the query heads; all others have one row per key and the KV heads."


def workspace_on(device: torch.device) -> int:
    """Return the limit of the oracle's intermediate results on a device, bytes; the same in every process."""
    if device.type != "cuda":
        return CPU_WORKSPACE if device.type == "cpu" else WORKSPACE
    return min(WORKSPACE, torch.cuda.get_device_properties(device).total_memory // SHARE)


def input_names(case: AttentionCase) -> tuple[str, ...]:
    """Names of the tensors that the oracle reads."""
    return ("q", "k", "v", "dout") if case.has_backward else ("q", "k", "v")


def output_names(case: AttentionCase) -> tuple[str, ...]:
    """Names of the outputs of a launch of this case."""
    return ("out", "dq", "dk", "dv") if case.has_backward else ("out",)


def output_shapes(case: AttentionCase, draw: Draw | None = None) -> dict[str, tuple[int, ...]]:
    """Shape of each output: whole, or of the pairs of a draw."""
    sizes = {"out": case.headdim_v, "dq": case.headdim, "dk": case.headdim, "dv": case.headdim_v}
    shapes = {}
    for name in output_names(case):
        side = 0 if name in QUERY_SIDE else 1
        lead: tuple[int, ...]
        if draw is None or draw.parts is None:
            rows = (case.batch, (case.seqlen, case.seqlen_k)[side])
            lead = (*(_total(case, side) if case.packed else rows), (case.nheads, case.nheads_kv)[side])
        else:
            count = sum(case.sequences[sequence][side] for sequence, _ in draw.parts)
            lead = (count, case.group_size) if side == 0 else (count,)
        shapes[name] = (*lead, sizes[name])
    return shapes


def _total(case: AttentionCase, side: int) -> tuple[int]:
    return (sum(lengths[side] for lengths in case.sequences),)


def pairs_of(case: AttentionCase, draw: Draw) -> Sequence[Part]:
    """The pairs of a draw, or all of the case."""
    if draw.parts is not None:
        return draw.parts
    return list(product(range(case.batch), range(case.nheads_kv)))


def by_sequence(case: AttentionCase, name: str, tensor: Tensor) -> Sequence[Tensor]:
    """Return views [rows, heads, size] of a whole tensor, one per sequence."""
    if not case.packed:
        return tensor.unbind(0)
    side = 0 if name in QUERY_SIDE else 1
    return tensor.split([lengths[side] for lengths in case.sequences])


def pieces(case: AttentionCase, name: str, tensor: Tensor, draw: Draw) -> list[Tensor]:
    """Return views of a whole tensor, one per pair: [Sq, R, size] of queries, [Sk, size] of keys."""
    views = by_sequence(case, name, tensor)
    if name in QUERY_SIDE:
        return [views[s][:, g * case.group_size : (g + 1) * case.group_size] for s, g in pairs_of(case, draw)]
    return [views[s][:, g] for s, g in pairs_of(case, draw)]


def result_pieces(case: AttentionCase, name: str, tensor: Tensor, draw: Draw) -> Sequence[Tensor]:
    """Like `pieces`, for a tensor in the layout of `output_shapes` for this draw."""
    if draw.parts is None:
        return pieces(case, name, tensor, draw)
    side = 0 if name in QUERY_SIDE else 1
    return tensor.split([case.sequences[sequence][side] for sequence, _ in draw.parts])


def select(case: AttentionCase, outputs: Mapping[str, Tensor], draw: Draw) -> dict[str, Tensor]:
    """Extract the drawn pairs from whole outputs; without a draw, return the outputs.

    Names that the case or `outputs` does not have are skipped.

    Raises:
        AttnbenchError: an output is not in the workload's layout.
    """
    whole = in_layout(case.id, outputs, output_shapes(case))
    if draw.parts is None:
        return whole
    return {name: torch.cat(pieces(case, name, tensor, draw)) for name, tensor in whole.items()}


def choose(case: AttentionCase, *, seed: int, max_bytes: int) -> Draw:
    """Return all pairs if the case's fp64 oracle fits in `max_bytes`, else as many drawn pairs as fit.

    This counts the result in fp64 and the oracle's workspace, but not the inputs or the results of `select`
    (at most as large as the result, in their own precision).  The corners are always included, even if
    they alone take more: first and last sequence, and the shortest and the longest by queries and by
    keys, each with the first and the last KV head.
    """
    everything = list(product(range(case.batch), range(case.nheads_kv)))
    workspace = min(WORKSPACE, max_bytes // 2, sum(work_bytes(case, pair) for pair in everything))
    corners = set(product(_corner_sequences(case), {0, case.nheads_kv - 1}))
    return draw_parts(
        everything,
        corners,
        unit=UNIT,
        key=f"attnbench draw 1 {case.id} {seed}",
        max_bytes=max_bytes - workspace,
        result_bytes=partial(_result_bytes, case),
    )


def work_bytes(case: AttentionCase, pair: Part) -> int:
    """Bytes of the oracle's workspace for one pair, if its rows are one chunk."""
    queries, keys = case.sequences[pair[0]]
    rows = queries * case.group_size
    return ITEM_BYTES * (SCORES * rows * keys + 2 * (rows + keys) * (case.headdim + case.headdim_v))


def _corner_sequences(case: AttentionCase) -> set[int]:
    order = range(case.batch)
    found = {0, case.batch - 1}
    for side in (0, 1):
        found |= {min(order, key=lambda s: case.sequences[s][side]), max(order, key=lambda s: case.sequences[s][side])}
    return found


def _result_bytes(case: AttentionCase, pair: Part) -> int:
    queries, keys = case.sequences[pair[0]]
    rows = queries * case.group_size
    items = rows * case.headdim_v
    if case.has_backward:
        items += rows * case.headdim + keys * (case.headdim + case.headdim_v)
    return ITEM_BYTES * items
