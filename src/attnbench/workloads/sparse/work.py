"""Exact useful work of a block map.  Imports without torch.

A visible (query, key) pair of a block that the map keeps costs 4 D FLOPs (Q Kᵀ and P V), in every query head; of a
block that the causal mask or the end of a sequence cuts, only visible pairs count.  ``dense_flops`` is the same for all
blocks: what a dense kernel has to compute.  Density is their ratio, not a share of blocks.

Bytes are the least that can be moved: queries that see a key, keys and values that some query head of their group
sees, each once, and the whole output.  The map itself is not counted, because its format depends on the implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnbench.dtypes import DTYPES
from attnbench.record import Work
from attnbench.workloads.attention.work import visible_pairs as dense_pairs
from attnbench.workloads.sparse.case import SparseCase
from attnbench.workloads.sparse.patterns import block_map, spans, visible_pairs

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def work(case: SparseCase) -> Work:
    """Return useful FLOPs, those of the dense problem, and least bytes."""
    return work_of(case, block_map(case))


def work_of(case: SparseCase, blocks: Array) -> Work:
    """Return the same for any map [B, H, rows, columns] on the problem of a case."""
    rows, keys = queries_seen(case, blocks), keys_seen(case, blocks)
    written = case.batch * case.nheads * case.seqlen
    moved = (rows + 2 * keys + written) * case.headdim * DTYPES[case.dtype].bytes
    return Work(flops=flops_of(case, blocks), bytes=moved, dense_flops=dense_flops(case))


def dense_flops(case: SparseCase) -> int:
    """FLOPs of the case with a map that keeps every block."""
    return 4 * case.headdim * case.nheads * dense_pairs(case.dense)


def flops_of(case: SparseCase, blocks: Array) -> int:
    """Useful FLOPs of a map."""
    import numpy as np

    kept = blocks.sum(axis=(0, 1), dtype=np.int64)
    return 4 * case.headdim * int((kept * visible_pairs(case)).sum())


def density(case: SparseCase) -> float:
    """Visible pairs that the map keeps, as a share of those that the causal mask leaves."""
    return flops_of(case, block_map(case)) / max(dense_flops(case), 1)


def queries_seen(case: SparseCase, blocks: Array) -> int:
    """Number of queries that see a key, over all sequences and query heads."""
    import numpy as np

    (start_q, size_q), (start_k, _) = spans(case)
    first = np.maximum(start_q, start_k + case.seqlen - case.seqlen_k) if case.causal else start_q + 0 * start_k
    reach = np.maximum(start_q + size_q - first, 0)
    # The earlier the keys, the more queries see them.
    return int(np.where(blocks.any(axis=3), reach[np.arange(len(reach)), blocks.argmax(axis=3)], 0).sum())


def keys_seen(case: SparseCase, blocks: Array) -> int:
    """Number of keys that a query head of the group sees, over all sequences and KV heads."""
    import numpy as np

    (start_q, size_q), (start_k, size_k) = spans(case)
    last = start_k + size_k + 0 * start_q
    if case.causal:
        last = np.minimum(last, start_q + size_q + case.seqlen_k - case.seqlen)
    reach = np.maximum(last - start_k, 0)
    grouped: Array = np.any(blocks.reshape(case.batch, case.nheads_kv, case.group_size, *case.blocks), axis=2)
    # The later the queries, the more keys they see.
    latest = len(reach) - 1 - grouped[:, :, ::-1].argmax(axis=2)
    return int(np.where(np.any(grouped, axis=2), reach[latest, np.arange(reach.shape[1])], 0).sum())
