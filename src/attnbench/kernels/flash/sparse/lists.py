"""Lists of a block map: made by two launches on the map's device, without synchronizing, and reusable in many calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from attnbench.kernels.flash.sparse.portable.lists import list_blocks, order_lists
from attnbench.kernels.flash.sparse.problem import SparseProblem, check_map, wrong
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, facts_of, launch
from attnbench.kernels.shared.tiling import group_of

SECTION_MIB = 16
"Heads are processed in sections whose keys and values take this much memory, so that they stay in the L2."
CHUNK = 128
MOST = 128 * CHUNK
"Most lists of a section: each is compared with all others to find its position."

_calls: Kept[Launches] = Kept()


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockLists:
    """The key blocks of each block of queries, and the order of the work; int32, on the map's device.

    A list belongs to `share` units of queries, which form one work item; with 1 and whole blocks, to a row of the map.
    """

    counts: Tensor
    "[B, H, units]: how many blocks a unit sees"
    indices: Tensor
    "[B, H, ceil(units / share), nk]: a list's blocks in ascending order; undefined after the last"
    places: Tensor | None
    "[B, H, units, nk]: positions of a unit's own blocks in its list, if it is shared"
    items: Tensor
    "[lists, 3]: index, length, and number of blocks that all its queries see whole; longest first within a section"
    share: int
    unit: int
    "queries of a unit: those of a block, or half of them"
    block: tuple[int, int]
    seqlen_q: int
    seqlen_k: int
    causal: bool


class ListTensors(NamedTuple):
    """The tensors of `BlockLists`, in the order of the operators."""

    counts: Tensor
    indices: Tensor
    places: Tensor | None
    items: Tensor


class MadeFor(NamedTuple):
    """What `BlockLists` were made for, in the order of the operators."""

    share: int
    unit: int
    block: tuple[int, int]
    seqlen_q: int
    seqlen_k: int
    causal: bool


def of_lists(lists: BlockLists) -> tuple[ListTensors, MadeFor]:
    """The tensors of lists, and what the lists were made for."""
    tensors = ListTensors(counts=lists.counts, indices=lists.indices, places=lists.places, items=lists.items)
    made_for = MadeFor(
        share=lists.share,
        unit=lists.unit,
        block=lists.block,
        seqlen_q=lists.seqlen_q,
        seqlen_k=lists.seqlen_k,
        causal=lists.causal,
    )
    return tensors, made_for


def lists_from(tensors: ListTensors, made_for: MadeFor) -> BlockLists:
    """The lists from the results of `of_lists`."""
    return BlockLists(**tensors._asdict(), **made_for._asdict())


def lists_of(
    block_map: Tensor, q: Tensor, k: Tensor, problem: SparseProblem, *, share: int = 1, unit: int = 0
) -> BlockLists:
    """List the blocks of a map; two launches, without synchronizing with the device.

    Args:
        block_map: bool [B, H, nq, nk], any strides.
        q: [B, Sq, H, D].
        k: [B, Sk, G, D]; the size of the keys determines which heads are processed together.
        problem: of these tensors.
        share: units that one work item processes together, 1 to 4.
        unit: queries of a unit: those of a block (0), or half of them.

    Raises:
        ValueError: the map does not fit; the message says what and what is accepted.
    """
    check_map(block_map, problem, q.device)
    unit = unit or problem.block_q
    section = section_heads(q, k)
    key = problem, share, unit, section, facts_of(block_map)
    launches = _calls.get(key) or _calls.keep(key, Launches(partial(_run, problem, share, unit, section), ()))
    counts, indices, places, items = launches(block_map)
    assert counts is not None and indices is not None and items is not None  # noqa: PT018 (no test)
    return BlockLists(
        counts=counts,
        indices=indices,
        places=places,
        items=items,
        share=share,
        unit=unit,
        block=problem.block,
        seqlen_q=problem.seqlen_q,
        seqlen_k=problem.seqlen_k,
        causal=problem.causal,
    )


def _run(problem: SparseProblem, share: int, unit: int, section: int, block_map: Tensor) -> Results:
    batch, heads, _, columns = problem.map_shape
    rows = -(-problem.seqlen_q // unit)
    lists = -(-rows // share)
    all_lists = batch * heads * lists
    new = partial(empty, like=block_map, dtype=torch.int32)
    indices, items = new((batch, heads, lists, columns)), new((all_lists, 3))
    listed, whole = new((batch, heads, lists)), new((all_lists,))
    counts = listed if share == 1 else new((batch, heads, rows))
    places = None if share == 1 else new((batch, heads, rows, columns))
    if all_lists:
        width = max(16, min(1024, triton.next_power_of_2(columns)))
        launch(
            list_blocks,
            (all_lists,),
            map_ptr=block_map.view(torch.uint8),
            counts_ptr=counts,
            places_ptr=places,
            listed_ptr=listed,
            whole_ptr=whole,
            indices_ptr=indices,
            map_batch=block_map.stride(0),
            map_head=block_map.stride(1),
            map_row=block_map.stride(2),
            map_column=block_map.stride(3),
            heads=heads,
            rows=rows,
            lists=lists,
            columns=columns,
            seqlen_q=problem.seqlen_q,
            seqlen_k=problem.seqlen_k,
            UNIT=unit,
            HALVES=problem.block_q // unit,
            BLOCK_K=problem.block_k,
            CAUSAL=problem.causal,
            SHARE=share,
            WIDTH=width,
            num_warps=1 if width <= 256 else 4,
        )
        of_section = min(section * lists, MOST)
        chunks = -(-of_section // CHUNK)
        launch(
            order_lists,
            (-(-all_lists // of_section) * chunks,),
            counts_ptr=listed,
            whole_ptr=whole,
            items_ptr=items,
            all_lists=all_lists,
            section_lists=of_section,
            chunks=chunks,
            CHUNK=CHUNK,
            num_warps=4,
        )
    return counts, indices, places, items


def section_heads(q: Tensor, k: Tensor) -> int:
    """Query heads of a section: those of as many KV heads as fit into SECTION_MIB with keys and values."""
    (batch, seqlen_k, heads_kv, dim), heads = k.shape, q.shape[-2]
    pair_bytes = seqlen_k * 2 * dim * k.element_size()
    return group_of(pair_bytes, SECTION_MIB, max(1, batch * heads_kv)) * (heads // heads_kv)


def check_lists(lists: BlockLists, problem: SparseProblem, *, share: int, unit: int, device: torch.device) -> None:
    """Refuse lists that were made for something else.

    Raises:
        ValueError: naming what differs, its value and what is accepted.
    """
    for name in ("block", "seqlen_q", "seqlen_k", "causal"):
        if getattr(lists, name) != getattr(problem, name):
            raise wrong(f"block_map.{name}", getattr(lists, name), "does not fit", f"{getattr(problem, name)}")
    if (lists.share, lists.unit) != (share, unit):
        raise wrong(
            "block_map.share",
            lists.share,
            f"of {lists.unit} queries does not fit",
            f"{share} of {unit}, as the launch configuration takes them",
        )
    shape = problem.batch, problem.heads, -(-problem.seqlen_q // unit)
    if tuple(lists.counts.shape) != shape:
        raise wrong("block_map.counts.shape", tuple(lists.counts.shape), "does not fit", f"{shape}")
    if lists.indices.device != device:
        raise wrong("block_map.indices.device", lists.indices.device, "does not fit", f"{device}, q's")
