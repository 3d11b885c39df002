"""Exact useful work of an `HstuCase`, in closed form.  Imports without torch.

FLOPs are counted over the visible (query, key) pairs, of real rows only, for every head; a
multiply-add counts as 2.  With D = attn_dim and Dv = linear_dim a pair costs

    forward   Q Kᵀ (2 D), A V (2 Dv)                                               2 (D + Dv)
    backward  Q Kᵀ again (2 D), dV = Aᵀ dO (2 Dv), dA = dO Vᵀ (2 Dv),
              dQ = dS K (2 D), dK = dSᵀ Q (2 D)                                    2 (3 D + 2 Dv)

SiLU itself is not counted.  Bytes are the least an implementation can move: every input read once,
every output written once (backward: Q, K, V, dO read, dQ, dK, dV written; O is not needed).  Offsets
and workspaces are not counted.  ``fwd-bwd`` is the sum of both.

`work` is that of the dense function, the measure of a case whatever computes it.  `sparse_work` is
that of the block-sparse function, which its launches state as executed: pairs of a query with the
compressed blocks it sees, with the keys of its selected blocks, and with those of its sliding window;
a key in two branches counts in both.  Scores of the compressed branch also rank the blocks and count
once; pooling, ranking and gating are not counted; gates (and their gradients) are included in the bytes.
"""

from __future__ import annotations

from attnbench.dtypes import DTYPES
from attnbench.record import Work
from attnbench.workloads.hstu.case import HstuCase
from attnbench.workloads.hstu.lengths import SequenceShape


def work(case: HstuCase) -> Work:
    """Return useful FLOPs and least bytes of the dense function in the case's mode."""
    return _work(case, visible_pairs(case), gate_bytes=0)


def sparse_work(case: HstuCase) -> Work:
    """Return FLOPs and least bytes of the block-sparse function in the case's mode."""
    queries = sum(shape.queries for shape in case.sequences)
    gates = queries * case.nheads * len(case.branches) * DTYPES[case.dtype].bytes if case.gates else 0
    return _work(case, sum(sparse_pairs(case)), gate_bytes=gates)


def _work(case: HstuCase, pairs: int, gate_bytes: int) -> Work:
    item = DTYPES[case.dtype].bytes * case.nheads
    queries = sum(shape.queries for shape in case.sequences) * item
    keys = sum(shape.length for shape in case.sequences) * item
    size, size_v = case.attn_dim, case.linear_dim
    qkv, out = queries * size + keys * (size + size_v), queries * size_v
    forward = 2 * (size + size_v) * case.nheads * pairs, qkv + out + gate_bytes
    backward = 2 * (3 * size + 2 * size_v) * case.nheads * pairs, 2 * qkv + out + 2 * gate_bytes
    counts = {"fwd": [forward], "bwd": [backward], "fwd-bwd": [forward, backward]}[case.mode]
    return Work(flops=sum(flops for flops, _ in counts), bytes=sum(moved for _, moved in counts))


def visible_pairs(case: HstuCase) -> int:
    """(query, key) pairs of the dense mask, over all sequences, for one head."""
    return sum(_visible(shape, case.causal, case.max_attn_len) for shape in case.sequences)


def _visible(shape: SequenceShape, causal: bool, window: int | None) -> int:
    history, prefix = shape.history, shape.prefix
    first = max(0, shape.first_query - prefix)
    rows = range(min(first, history), history)
    targets = min(shape.targets, shape.queries)
    of_prefix = max(0, prefix - shape.first_query) * shape.seen
    reach = history if window is None else window
    backward = _capped(rows, reach + 1)
    # History row x has as many keys ahead as row history - 1 - x has behind, not counting itself.
    ahead = 0 if causal else _capped(range(len(rows)), reach + 1) - len(rows)
    near = len(rows) if window is None else max(0, min(history, window) - rows.start)
    target = min(history, reach) + 1 + (prefix if window is None or history + 1 <= window else 0)
    return of_prefix + backward + ahead + prefix * near + targets * target


def sparse_pairs(case: HstuCase) -> tuple[int, int, int]:
    """Pairs of the compressed, the selected and the sliding branch, over all sequences, for one head."""
    counts = [_sparse(shape, case) for shape in case.sequences]
    compressed, selected, sliding = (sum(count[i] for count in counts) for i in range(3))
    return compressed, selected, sliding


def _sparse(shape: SequenceShape, case: HstuCase) -> tuple[int, int, int]:
    history, size, others = shape.seen, case.block_size, case.block_counts - 1
    rows = range(min(shape.first_query, history), history)
    targets = min(shape.targets, shape.queries)
    compressed = _complete_blocks(rows.stop, size) - _complete_blocks(rows.start, size)
    selected = _selected_keys(rows.stop, size, others) - _selected_keys(rows.start, size, others)
    if history:
        last = (history - 1) // size
        selected += targets * (history - last * size + min(others, last) * size)
    sliding = 0
    if case.local_window is not None:
        sliding = _capped(rows, case.local_window) + targets * (min(history, case.local_window - 1) + 1)
    return compressed + targets * (history // size), selected + targets, sliding


def _complete_blocks(rows: int, size: int) -> int:
    """Σ over the first rows of the number of blocks that end at or before each: ⌊(x + 1) / size⌋."""
    blocks, rest = divmod(rows, size)
    return size * _triangle(blocks - 1) + blocks * (rest + 1)


def _selected_keys(rows: int, size: int, others: int) -> int:
    """Σ over the first rows of the keys that each selects: its own block up to itself, and full ones before."""
    blocks, rest = divmod(rows, size)
    own = blocks * _triangle(size) + _triangle(rest)
    full = size * _capped(range(blocks - 1), others) + rest * min(others, blocks)
    return own + size * full


def _capped(rows: range, cap: int) -> int:
    """Σ of min(x + 1, cap) over the rows x."""

    def below(stop: int) -> int:
        return _triangle(min(stop, cap)) + max(0, stop - cap) * cap

    return below(rows.stop) - below(rows.start) if rows else 0


def _triangle(n: int) -> int:
    return n * (n + 1) // 2 if n > 0 else 0
