"""Launches of the block-sparse HSTU backward, in which the selection is constant.

Deterministic: every sum is computed by one program in one order.  Partial rows of dq exist for some (sequence, head)
pairs at a time, one pass after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnbench.kernels.hstu.arguments import RowStrides
from attnbench.kernels.hstu.bsa.call import BsaCall, options_of, with_meta
from attnbench.kernels.hstu.bsa.plan import pairs_of_pass
from attnbench.kernels.hstu.bsa.portable.arguments import (
    BackwardStrides,
    GradKeysMeta,
    GradMeansMeta,
    GradMeansStrides,
    GradRowsMeta,
)
from attnbench.kernels.hstu.bsa.portable.grad_keys import hstu_bsa_grad_keys, hstu_bsa_grad_means
from attnbench.kernels.hstu.bsa.portable.grad_rows import hstu_bsa_grad_rows
from attnbench.kernels.hstu.bsa.portable.lists import hstu_bsa_merge, hstu_bsa_sort
from attnbench.kernels.shared.kept import clear, launch

LARGEST_SUMS = 4096
"""Elements of dk or dv of a block that a program holds; more keys are processed in parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BsaGradients:
    """One backward: the forward's call, the output's gradient, results and workspace."""

    call: BsaCall
    dout: Tensor
    "[queries, H, Dv], any strides of rows and heads"
    dq: Tensor
    "contiguous, like all results"
    dk: Tensor
    dv: Tensor
    dgates: Tensor | None
    workspace: dict[str, Tensor]
    "shapes as in `backward_shapes`"


def backward(grad: BsaGradients) -> None:
    """Launch all kernels: dq, dk, dv and dgates are written."""
    call, p, c = grad.call, grad.call.problem, grad.call.config
    if (p.has_targets and p.has_cache) or not p.max_seqlen_q:
        # Targets that are not queries are keys that no query sees, as are all keys where there are no queries.
        clear(grad.dk)
        clear(grad.dv)
    tiles = -(-(p.max_seqlen // p.block_size) // c.means_blocks)
    if not p.units * p.max_seqlen * p.max_seqlen_q:
        return
    common = _common(grad)
    if tiles:
        launch(
            hstu_bsa_grad_means,
            (p.units * tiles,),
            **with_meta(
                GradMeansMeta,
                **common,
                **call.tensors("q", "means_k", "means_v"),
                strides=GradMeansStrides(**call.strides("q"), dout=RowStrides.of(grad.dout)),
                **_pointers(grad, "dmeans"),
                tiles=tiles,
                mean_rows=p.mean_rows,
                ROWS=c.means_rows,
                BLOCKS=c.means_blocks,
                **options_of(c.means_warps, c.means_stages),
            ),
        )
    _order(grad)
    common |= {
        **call.tensors("q", "k", "v"),
        "strides": BackwardStrides(**call.strides("q", "k", "v"), dout=RowStrides.of(grad.dout)),
        **_pointers(grad, "partial"),
        "mean_rows": p.mean_rows,
        "slot_rows": p.slot_rows,
        "OTHERS": p.others,
        "WINDOW": p.local_window,
        "dk_ptr": grad.dk,
        "dv_ptr": grad.dv,
    }
    step = pairs_of_pass(p, p.attn_dim, c)
    for first in range(0, p.units, step):
        units = min(step, p.units - first)
        _keys(grad, common, first, units)
        tiles = -(-p.max_seqlen_q // c.rows_rows)
        if tiles:
            launch(
                hstu_bsa_grad_rows,
                (units * tiles,),
                **with_meta(
                    GradRowsMeta,
                    **common,
                    **call.tensors("means_k", "means_v"),
                    dq_ptr=grad.dq,
                    dgates_ptr=call.q if grad.dgates is None else grad.dgates,
                    first_unit=first,
                    tiles=tiles,
                    ROWS=c.rows_rows,
                    BLOCKS=c.rows_blocks,
                    KEYS=c.near_keys,
                    SLOTS=c.slot_stages,
                    **options_of(c.rows_warps, c.rows_stages, c.rows_registers),
                ),
            )


def _order(grad: BsaGradients) -> None:
    """Sort the lists: a forward leaves them in the order of its atomics."""
    call, p, c = grad.call, grad.call.problem, grad.call.config
    chunks = -(-p.slot_rows // c.order_chunk)
    if not chunks:
        return
    common = {
        **call.tensors("blocks", "starts"),
        "pieces_ptr": grad.workspace["pieces"],
        "sequences": call.sequences,
        "list_heads": p.list_heads,
        "chunks": chunks,
        "entry_rows": p.entry_rows,
        "count_rows": p.count_rows,
        **call.flags(),
        "OTHERS": p.others,
        "CHUNK": c.order_chunk,
        "num_warps": c.order_warps,
    }
    grid = (p.batch * p.list_heads * chunks,)
    # The largest key is that of the last entry in the last block; padding has a larger one.
    wide = (p.max_seqlen // p.block_size + 1) * p.slot_rows >= 2**31
    launch(hstu_bsa_sort, grid, **common, **call.tensors("entries"), slot_rows=p.slot_rows, WIDE=wide)
    launch(hstu_bsa_merge, grid, **common, ordered_ptr=grad.workspace["ordered"], STEPS=c.order_chunk.bit_length())


def _keys(grad: BsaGradients, common: dict[str, Any], first: int, units: int) -> None:
    call, p, c = grad.call, grad.call.problem, grad.call.config
    tiles = -(-p.max_seqlen // p.block_size)
    lists = {
        "entries_ptr": grad.workspace.get("ordered", call.blocks),
        "starts_ptr": call.workspace.get("starts", call.blocks),
    }
    columns = max(p.block_d, p.block_v)
    launch(
        hstu_bsa_grad_keys,
        (units * tiles,),
        **with_meta(
            GradKeysMeta,
            **common,
            **lists,
            **_pointers(grad, "dmeans"),
            first_unit=first,
            tiles=tiles,
            entry_rows=p.entry_rows,
            count_rows=p.count_rows,
            SHARED=p.shared,
            ROWS=c.keys_rows,
            KEYS=min(p.block_size, max(16, LARGEST_SUMS // columns)),
            **options_of(c.keys_warps, c.keys_stages, c.keys_registers),
        ),
    )


def _common(grad: BsaGradients) -> dict[str, Any]:
    call, p, c = grad.call, grad.call.problem, grad.call.config
    return {
        "sequences": call.sequences,
        **call.factors(),
        **call.dims(),
        **call.flags(),
        "dout_ptr": grad.dout,
        "gates_ptr": call.q if call.gates is None else call.gates,
        "heads": p.heads,
        "GATES": p.gates,
        "TANH": c.silu == "tanh",
    }


def _pointers(grad: BsaGradients, kind: str) -> dict[str, Tensor]:
    """Workspace of a kind; without other blocks there are no partial rows, and these pointers are not read."""
    names = {"dmeans": ("dmeans_k", "dmeans_v"), "partial": ("partial_dq", "partial_dgate")}[kind]
    return {f"{name}_ptr": grad.workspace.get(name, grad.dq) for name in names}
