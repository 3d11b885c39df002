"""Lists of a block map: made by two launches on the map's device, without a wait, and good for many calls."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from attnbench.kernels.flash.sparse.portable.lists import list_blocks, order_rows
from attnbench.kernels.flash.sparse.problem import SparseProblem, check_map, wrong
from attnbench.kernels.shared.tiling import group_of

SECTION_MIB = 16
"Heads whose keys and values are this large together are worked through before the next: they stay in the L2."
CHUNK = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockLists:
    """The blocks of keys of each block of queries, and the order of the work; int32, on the map's device."""

    counts: Tensor
    "[B, H, nq]: how many blocks a row has"
    whole: Tensor
    "[B, H, nq]: how many of these every query of the row sees whole; they come first"
    indices: Tensor
    "[B, H, nq, nk]: their numbers, rising; behind the last anything"
    items: Tensor
    "[B H nq, 3]: number, count and whole of each row, longest first within a section of heads"
    block: tuple[int, int]
    seqlen_q: int
    seqlen_k: int
    causal: bool


def lists_of(block_map: Tensor, q: Tensor, k: Tensor, problem: SparseProblem) -> BlockLists:
    """List the blocks of a map that was checked; two launches, nothing waits for the device.

    Args:
        block_map: bool [B, H, nq, nk], any strides.
        q: [B, Sq, H, D].
        k: [B, Sk, G, D]; how large the keys are says which heads are worked through together.
        problem: of these tensors.

    Raises:
        ValueError: the map does not fit; the one line says what and what is accepted.
    """
    check_map(block_map, problem, q.device)
    batch, heads, rows, columns = problem.map_shape
    all_rows = batch * heads * rows
    indices = torch.empty(problem.map_shape, dtype=torch.int32, device=q.device)
    counts, whole = torch.empty(2, batch, heads, rows, dtype=torch.int32, device=q.device).unbind()
    items = torch.empty(all_rows, 3, dtype=torch.int32, device=q.device)
    lists = BlockLists(counts=counts, whole=whole, indices=indices, items=items, block=problem.block,
                       seqlen_q=problem.seqlen_q, seqlen_k=problem.seqlen_k, causal=problem.causal)
    if all_rows == 0:
        return lists
    width = max(16, min(1024, triton.next_power_of_2(columns)))
    with torch.cuda.device_of(q):  # Triton launches on the current device
        list_blocks[(all_rows,)](
            block_map.view(torch.uint8), counts, whole, indices, *block_map.stride(), heads, rows, columns,
            problem.seqlen_q, problem.seqlen_k, BLOCK_Q=problem.block[0], BLOCK_K=problem.block[1],
            CAUSAL=problem.causal, WIDTH=width, num_warps=1 if width <= 256 else 4)
        section = section_heads(q, k) * rows
        chunks = -(-section // CHUNK)
        order_rows[(-(-all_rows // section) * chunks,)](
            counts, whole, items, all_rows, section, chunks, CHUNK=CHUNK, num_warps=4)
    return lists


def section_heads(q: Tensor, k: Tensor) -> int:
    """Query heads of a section: those of as many KV heads as fit, with keys and values, in SECTION_MIB."""
    (batch, seqlen_k, heads_kv, dim), heads = k.shape, q.shape[-2]
    pair_bytes = seqlen_k * 2 * dim * k.element_size()
    return group_of(pair_bytes, SECTION_MIB, max(1, batch * heads_kv)) * (heads // heads_kv)


def check_lists(lists: BlockLists, problem: SparseProblem, device: torch.device) -> None:
    """Refuse lists that were made for something else.

    Raises:
        ValueError: naming what differs, its value and what is accepted.
    """
    for name in ("block", "seqlen_q", "seqlen_k", "causal"):
        if getattr(lists, name) != getattr(problem, name):
            raise wrong(f"block_map.{name}", getattr(lists, name), "does not fit", f"{getattr(problem, name)}")
    if tuple(lists.indices.shape) != problem.map_shape:
        raise wrong("block_map.indices.shape", tuple(lists.indices.shape), "does not fit", f"{problem.map_shape}")
    if lists.indices.device != device:
        raise wrong("block_map.indices.device", lists.indices.device, "does not fit", f"{device}, q's")
