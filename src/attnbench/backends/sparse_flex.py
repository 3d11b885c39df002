"""``sparse-flex``: FlexAttention under torch.compile with the map as a BlockMask; kept blocks are computed unmasked.

If the causal mask or the end of a sequence cuts a block, the block is listed as partial and its mask is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch, Machine
from attnbench.backends.compiled import compiled_alone
from attnbench.backends.sparse import ALL_DTYPES, SparseBackend, SparseLimits, lists_of, map_of_lists
from attnbench.errors import Unsupported, refusal
from attnbench.workloads.sparse.patterns import visible_pairs

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.workloads.sparse.case import SparseCase
    from attnbench.workloads.sparse.inputs import SparseInputs


class SparseFlex(SparseBackend):
    """On a GPU it supports head dimensions from 16."""

    name = "sparse-flex"
    title = "FlexAttention, block mask"
    tested = "NVIDIA H200, torch 2.11"
    install = "part of torch"
    devices = ("cpu", "cuda")
    compiles = True
    limits = SparseLimits(
        dtypes=ALL_DTYPES, gqa=True, causal=True, bottom_right=True, empty_rows=True, capability=(7, 0)
    )

    def check(self, case: SparseCase, machine: Machine) -> None:
        """Refuse cases that torch has not implemented.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if machine.device == "cuda" and case.headdim < 16:
            raise Unsupported(refusal(self.name, "headdim", case.headdim, "is too small on a GPU", "at least 16"))

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D]; the first call compiles."""
        from torch.nn.attention.flex_attention import flex_attention

        options: dict[str, Any] = {"scale": case.scale, "enable_gqa": case.nheads != case.nheads_kv}
        if inputs.q.is_cuda:  # the compiled kernel's tiles must divide the blocks of the mask
            rows, keys = case.block_shape
            options["kernel_options"] = {"BLOCK_M": rows, "BLOCK_N": min(keys, 64)} if min(rows, keys) < 128 else None
        made: dict[str, Any] = {}

        def convert(blocks: Tensor) -> None:
            made["mask"] = block_mask(case, blocks, visible)

        def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
            return flex_attention(q, k, v, block_mask=mask, **options)

        visible = pairs_of(case, inputs.q.device)
        compiled = compiled_alone(attend)
        yield self.launch(case, inputs, lambda q, k, v: compiled(q, k, v, made["mask"]), convert=convert)


def pairs_of(case: SparseCase, device: device) -> Tensor:
    """Return the number of visible pairs in each block, on a device, int64 [rows, columns]."""
    import torch

    return torch.from_numpy(visible_pairs(case)).to(device)


def block_mask(case: SparseCase, blocks: Tensor, visible: Tensor) -> Any:
    """Return FlexAttention's BlockMask of a map, given the visible pairs of each block."""
    from torch.nn.attention.flex_attention import BlockMask

    whole = visible == case.block_shape[0] * case.block_shape[1]
    partial, full = lists_of(blocks & ~whole & (visible > 0)), lists_of(blocks & whole)
    return BlockMask.from_kv_blocks(
        partial["counts"],
        partial["indices"],
        full["counts"],
        full["indices"],
        BLOCK_SIZE=case.block_shape,
        mask_mod=_rule(case),
        seq_lengths=(case.seqlen, case.seqlen_k),
    )


def map_of(case: SparseCase, mask: Any) -> Tensor:
    """Return the map that a BlockMask was made from, without blocks that the causal mask hides entirely."""
    columns = case.blocks[1]
    return map_of_lists(mask.kv_num_blocks, mask.kv_indices, columns) | map_of_lists(
        mask.full_kv_num_blocks, mask.full_kv_indices, columns
    )


def _rule(case: SparseCase) -> Callable[..., Tensor]:
    """Return the mask function of a pair, evaluated only in partial blocks."""
    shift = case.seqlen_k - case.seqlen
    if case.causal:
        return lambda b, h, row, key: row + shift >= key
    return lambda b, h, row, key: key >= 0
