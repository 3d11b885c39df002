"""The oracle of block-sparse HSTU attention (variant ``hstu-bsa``), with gradients and its selection.

Causal, without prefix and window.  The h history rows of a sequence are split into ⌈h / BS⌉ blocks of BS
keys; k̄, v̄ are the means of the complete ones.  Row t of the history (a target is at t = h, after
all of it) adds three branches, each weighted by its gate if the case has gates:

    compressed  c · BS · Σ SiLU(α q·k̄_b) v̄_b over the complete blocks that end at or before t
    selected    c · Σ SiLU(α q·k_j) v_j over the keys j ≤ t of the selected blocks; a target adds itself
    sliding     c · Σ SiLU(α q·k_j) v_j over t - w < j ≤ t; a target: over h - w < j < h, and itself

At most `block_counts` blocks are selected: always the local block (the one containing t; for a target the last one,
complete or not), and of the complete blocks before it those with the largest score α q·k̄ (not its SiLU, which is not
monotonic).  Ties go to the lower block: equal means have bit-identical scores, whatever else is computed
(`scores_of`).  With ``selection=shared`` the scores of all heads are added and all heads select the same.  With
``pairs`` the history is item, action, item, action …: an action (an odd row) uses the blocks of its item, the row
before it, which is in the same block.  An action whose item is not a query (`delta_q` separates them) ranks by
itself, as every target does.

The selection is constant in the gradients.  It is made from the inputs in fp64 whatever the precision
of the evaluation, so that two evaluations differ by rounding and not by a block.  A backend ranks in
its own precision and may choose another block if two have similar scores: `selection_faults` judges its
blocks by score, and `evaluate` accepts them and computes what follows from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from attnbench.errors import UsageError
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import parts
from attnbench.workloads.hstu.case import HstuCase
from attnbench.workloads.hstu.inputs import HstuInputs, torch_dtype
from attnbench.workloads.hstu.lengths import SequenceShape
from attnbench.workloads.hstu.oracle import Sink, attend

ROUNDING = 4.0
"Rounding steps by which a selected block may score below an omitted one; `selection_faults` defines the step."


def evaluate(
    case: HstuCase,
    inputs: HstuInputs,
    *,
    dtype: torch.dtype,
    draw: Draw,
    blocks: Tensor | None = None,
    workspace: int | None = None,
) -> dict[str, Tensor]:
    """Evaluate the drawn pairs of the block-sparse variant.

    Args:
        case: the problem.
        inputs: its tensors; the result is on their device.
        dtype: of every product and of the result.
        draw: which pairs.
        blocks: a selection in the form of `select_blocks`; None: the right one.
        workspace: limit of intermediate results in bytes, as in the dense oracle.

    Returns:
        out, and dq, dk, dv (and dgates, with gates) unless the mode is fwd.

    Raises:
        UsageError: the variant is not defined for the case.
    """
    _check(case)
    sink = Sink(case, "hstu-bsa", inputs, dtype=dtype, draw=draw)
    given = None if blocks is None else parts.by_sequence(case, "q", blocks)
    for number, heads in sink.runs():
        chosen = _select(case, inputs, number, workspace) if given is None else given[number]
        sink.store(number, heads, _sequence(case, sink, number, heads, chosen.transpose(0, 1), workspace))
    return sink.result


def _sequence(
    case: HstuCase, sink: Sink, number: int, heads: list[int], chosen: Tensor, workspace: int | None
) -> dict[str, Tensor]:
    """Compute all branches of one sequence and some heads; `chosen` is [H, queries, S]."""
    shape = case.sequences[number]
    q, k, v = (sink.source(name, number, heads) for name in ("q", "k", "v"))
    dout = sink.source("dout", number, heads) if case.has_backward else None
    gates = sink.source("gates", number, heads) if case.gates else None
    chosen = chosen[chosen.new_tensor(heads)] if chosen.shape[0] > 1 else chosen
    total: dict[str, Tensor] = {}
    of_gates = []
    for i, branch in enumerate(case.branches):
        gate = None if gates is None else gates[:, :, i : i + 1]
        coarse = branch == "compressed"
        factor = case.block_size if coarse else 1

        def mask(rows: range, branch: str = branch) -> Tensor:
            return branch_mask(case, shape, rows, branch, chosen)

        # The gate of a row is a factor of its gradient.
        above = dout if dout is None or gate is None else dout * gate
        keys, values = (block_means(x, shape, case) if coarse else x for x in (k, v))
        answer = attend(
            q, keys, values, above, mask=mask, alpha=case.alpha, scale=factor / case.scaling_seqlen, workspace=workspace
        )
        if dout is not None and gate is not None:
            of_gates.append((dout * answer["out"]).sum(-1, keepdim=True))
        if gate is not None:
            answer["out"] = answer["out"] * gate
        if coarse:
            answer |= {name: spread(answer[name], shape, case) for name in ("dk", "dv") if name in answer}
        total = {name: tensor + total[name] if total else tensor for name, tensor in answer.items()}
    return total | ({"dgates": torch.cat(of_gates, -1)} if of_gates else {})


def branch_mask(case: HstuCase, shape: SequenceShape, rows: range, branch: str, chosen: Tensor) -> Tensor:
    """Return the keys (compressed: complete blocks) seen by rows in a branch, bool [rows, keys] or [heads, rows, keys].

    Args:
        case: the problem.
        shape: of the sequence.
        rows: queries of the sequence.
        branch: a name in `HstuCase.branches`.
        chosen: selected blocks of all queries of the sequence [heads, queries, S], -1 for none.
    """
    device = chosen.device
    i = (torch.arange(rows.start, rows.stop, device=device) + shape.first_query)[:, None]
    if branch == "compressed":
        block = torch.arange(shape.seen // case.block_size, device=device)
        return (block + 1) * case.block_size - 1 <= i
    j = torch.arange(shape.length, device=device)[None, :]
    past = (j <= i) & (j < shape.seen)
    if branch == "sliding":
        assert case.local_window is not None
        return (past & (i.clamp(max=shape.seen) - j < case.local_window)) | (j == i)
    picked = chosen[:, rows.start : rows.stop].long()
    count = -(-shape.seen // case.block_size)
    # One more column for the -1 entries.
    held = torch.zeros(*picked.shape[:2], count + 1, dtype=torch.bool, device=device)
    held.scatter_(2, picked.where(picked >= 0, count), True)
    of_key = (torch.arange(shape.length, device=device) // case.block_size).clamp(max=count)
    return (held[:, :, of_key] & past) | ((j == i) & (i >= shape.seen))


def select_blocks(case: HstuCase, inputs: HstuInputs, *, workspace: int | None = None) -> Tensor:
    """Return the right selection: int32 [Tq, heads, S], ascending, then -1; heads is 1 if it is shared.

    Raises:
        UsageError: the variant is not defined for the case.
    """
    _check(case)
    return torch.cat([_select(case, inputs, number, workspace) for number in range(case.batch)])


def _select(case: HstuCase, inputs: HstuInputs, number: int, workspace: int | None) -> Tensor:
    shape = case.sequences[number]
    heads = 1 if case.selection == "shared" else case.nheads
    chosen = torch.full((heads, shape.queries, case.block_counts), -1, dtype=torch.int32, device=inputs.q.device)
    if shape.seen == 0:
        return chosen.transpose(0, 1)
    for rows in _chunks(case, shape, inputs, workspace):
        scores, local, _ = _scores(case, inputs, number, rows)
        count = min(case.block_counts, scores.shape[2])
        # The local block first, then those before it by score; with a stable sort ties go to the lower block.
        scores.scatter_(2, local.expand(heads, -1, 1), torch.inf)
        best, order = scores.sort(dim=2, descending=True, stable=True)
        kept = order[:, :, :count].where(best[:, :, :count] > -torch.inf, scores.shape[2]).sort(dim=2).values
        chosen[:, rows.start : rows.stop, :count] = kept.where(kept < scores.shape[2], -1).int()
    return chosen.transpose(0, 1)


def selection_faults(
    case: HstuCase, inputs: HstuInputs, blocks: Tensor, *, workspace: int | None = None
) -> Sequence[str]:
    """Return the faults of a selection; none if every selected block deserves its place by score.

    A selected block may score below an omitted one by `ROUNDING` steps of the case's precision at the row's
    largest Σ |q_d k̄_d|, plus as many of fp32 at its largest Σ |q_d| · mean |k_d|.  The first bounds the effect of
    rounding means, products and scores, the second that of sums in fp32.  A mean is far smaller
    than its keys, so selections from keys summed in 16 bits do not pass.

    Args:
        case: the problem.
        inputs: its tensors.
        blocks: [Tq, heads, S] in any order, -1 for none; heads is 1 if the selection is shared.
        workspace: limit of intermediate results in bytes.
    """
    _check(case)
    heads = 1 if case.selection == "shared" else case.nheads
    expected = (sum(shape.queries for shape in case.sequences), heads, case.block_counts)
    if tuple(blocks.shape) != expected:
        return [f"blocks have the shape {list(blocks.shape)}, not {list(expected)}"]
    found: dict[str, None] = {}
    for number, given in enumerate(parts.by_sequence(case, "q", blocks)):
        shape = case.sequences[number]
        if case.pairs and not torch.equal(*(given.sort(2).values[i] for i in _actions(case, shape, given.device))):
            found[f"sequence {number}: an action with other blocks than its item"] = None
        for rows in _chunks(case, shape, inputs, workspace):
            picked = given[rows.start : rows.stop].transpose(0, 1).long()
            for words in _faults(case, inputs, number, rows, picked):
                found.setdefault(f"sequence {number}: {words}")
    return list(found)


def _faults(case: HstuCase, inputs: HstuInputs, number: int, rows: range, picked: Tensor) -> list[str]:
    if case.sequences[number].seen == 0:
        return ["a block where there is none"] if (picked >= 0).any() else []
    scores, local, bound = _scores(case, inputs, number, rows)
    count = scores.shape[2]
    if ((picked < -1) | (picked > local)).any():
        return ["a block that is not there or lies in the future"]
    times = torch.zeros(*picked.shape[:2], count + 1, dtype=torch.int64, device=picked.device)
    times.scatter_add_(2, picked.where(picked >= 0, count), torch.ones_like(picked))
    held = times[:, :, :count]
    faults = []
    if (held > 1).any():
        faults.append("a block twice")
    if (held.gather(2, local.expand(held.shape[0], -1, 1)) < 1).any():
        faults.append("the local block left out")
    if ((held > 0).sum(2) != (local[..., 0] + 1).clamp(max=case.block_counts)).any():
        faults.append("not as many blocks as there are to choose")
    earlier = torch.arange(count, device=picked.device) < local
    worst = scores.masked_fill(~(earlier & (held > 0)), torch.inf).amin(2)
    missed = scores.masked_fill(~(earlier & (held == 0)), -torch.inf).amax(2)
    if (worst < missed - ROUNDING * bound).any():
        faults.append("a block chosen over one that scores higher")
    return faults


def _scores(case: HstuCase, inputs: HstuInputs, number: int, rows: range) -> tuple[Tensor, Tensor, Tensor]:
    """Scores [heads, rows, blocks] (-inf from the local block on), local block [1, rows, 1], and step [heads, rows]."""
    shape = case.sequences[number]
    ranking = _ranking(case, shape, rows, inputs.q.device)
    q = parts.by_sequence(case, "q", inputs.q)[number].detach()[ranking].double().transpose(0, 1)
    k = parts.by_sequence(case, "k", inputs.k)[number].detach().double().transpose(0, 1)
    count = -(-shape.seen // case.block_size)
    scores = q.new_full((case.nheads, len(rows), count), -torch.inf)
    sizes = q.new_zeros(case.nheads, len(rows), count)
    means = block_means(k, shape, case)
    # Without α, which is positive and changes no order.
    scores[:, :, : means.shape[1]] = scores_of(q, means)
    step, step_of_sums = (torch.finfo(dtype).eps for dtype in (torch_dtype(case), torch.float32))
    moved = step * means.abs() + step_of_sums * block_means(k.abs(), shape, case)
    sizes[:, :, : means.shape[1]] = q.abs() @ moved.mT
    if case.selection == "shared":
        # One head after another: the order of a sum along a dimension depends on the number of rows.
        scores, sizes = reduce(torch.add, scores.split(1)), sizes.sum(0, keepdim=True)
    position = torch.arange(rows.start, rows.stop, device=q.device) + shape.first_query
    local = (position.clamp(max=shape.seen - 1) // case.block_size)[None, :, None]
    scores.masked_fill_(torch.arange(count, device=q.device) >= local, -torch.inf)
    return scores, local, sizes.amax(2)


def scores_of(q: Tensor, means: Tensor) -> Tensor:
    """Return products [heads, rows, blocks] of queries and means in fp64 whose bits depend only on the two vectors.

    A matrix product sums in an order that depends on the numbers of rows and columns, and on the position of
    an element: scores of equal means would differ in their last bits, and change with the chunk of rows.
    Here every sum is exact, so its order is irrelevant.  A vector is scaled by a power of two to
    at most 1 and each element split into two numbers, multiples of 2⁻ᵇ and of 2⁻²ᵇ.  With 2b + log2 D + 1 ≤ 53, b = 22
    for D = 256, no product of such vectors rounds (Ozaki et al. 2012, doi:10.1007/s11075-011-9478-1).  The four
    products are then added elementwise.  The error is below 2⁻²ᵇ of a vector's largest element.

    Args:
        q: fp64 [heads, rows, D].
        means: fp64 [heads, blocks, D].
    """
    bits = (52 - math.ceil(math.log2(q.shape[-1]))) // 2
    (high, low, scale), (means_high, means_low, means_scale) = (_cut(x, bits) for x in (q, means))
    small = high @ means_low.mT + low @ means_high.mT + low @ means_low.mT
    return (high @ means_high.mT + small) * scale * means_scale.mT


def _cut(vectors: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return high and low part of vectors scaled to at most 1, and their scale [..., 1]."""
    exponents = vectors.abs().amax(-1, keepdim=True).frexp().exponent
    scale = torch.ldexp(torch.ones_like(vectors[..., :1]), exponents)
    scaled = vectors / scale
    high = (scaled * 2**bits).round() / 2**bits
    low = ((scaled - high) * 2 ** (2 * bits)).round() / 2 ** (2 * bits)
    return high, low, scale


def _ranking(case: HstuCase, shape: SequenceShape, rows: range, device: torch.device) -> Tensor:
    """Return the query that ranks the blocks of each row: itself, or with pairs the item of an action."""
    row = torch.arange(rows.start, rows.stop, device=device)
    position = row + shape.first_query
    action = (position % 2 == 1) & (position < shape.seen) & (row > 0)
    return row - action.long() if case.pairs else row


def _actions(case: HstuCase, shape: SequenceShape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the actions of a sequence that use the blocks of an item, and these items."""
    ranking = _ranking(case, shape, range(shape.queries), device)
    actions = (ranking != torch.arange(shape.queries, device=device)).nonzero()[:, 0]
    return actions, ranking[actions]


def block_means(tensor: Tensor, shape: SequenceShape, case: HstuCase) -> Tensor:
    """Return the means [heads, complete blocks, size] of the rows of each complete block, summed in at least fp32.

    Summed pairwise over a power of two, so that equal blocks have equal means wherever they are.
    """
    whole = shape.seen // case.block_size
    rows = tensor[:, : whole * case.block_size].unflatten(1, (whole, case.block_size))
    rows = rows.to(torch.promote_types(tensor.dtype, torch.float32))
    while rows.shape[2] > 1:
        rows = rows[:, :, ::2] + rows[:, :, 1::2]
    return (rows[:, :, 0] / case.block_size).to(tensor.dtype)


def spread(gradient: Tensor, shape: SequenceShape, case: HstuCase) -> Tensor:
    """Return the gradient of the rows from that of the means of their blocks."""
    spread = (gradient / case.block_size).repeat_interleave(case.block_size, 1)
    return torch.nn.functional.pad(spread, (0, 0, 0, shape.length - spread.shape[1]))


def _chunks(case: HstuCase, shape: SequenceShape, inputs: HstuInputs, workspace: int | None) -> list[range]:
    count = -(-shape.seen // case.block_size)
    room = workspace or parts.workspace_on(inputs.q.device)
    step = max(1, room // (parts.ITEM_BYTES * parts.SCORES * case.nheads * (count + 1)))
    return [range(start, min(start + step, shape.queries)) for start in range(0, shape.queries, step)]


def _check(case: HstuCase) -> None:
    if (why := case.sparse_refusal) is not None:
        raise UsageError(why)
