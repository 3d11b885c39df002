"""``flex``: FlexAttention under torch.compile, with a block mask made at set-up.

Uncompiled, flex_attention is a dense reference; compiled, it falls back to that at the ninth shape of one
function, with only a warning.  So every session compiles a function of its own, in one graph,
where a fallback is an error.  Variable length is one packed sequence whose mask separates documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch, Machine
from attnbench.backends.compiled import compiled_alone
from attnbench.backends.dense import ALL_DTYPES, DenseBackend, Limits
from attnbench.backends.differentiable import Operands
from attnbench.backends.mask import Mask
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch.nn.attention.flex_attention import BlockMask

    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs

NO_BLOCKS = 2**30
"Block size by which flex_attention recognises that nothing is masked."


class Flex(DenseBackend):
    """On a CPU forward only; on a GPU head dimensions from 16."""

    name = "flex"
    title = "FlexAttention"
    tested = "NVIDIA H200, torch 2.11"
    install = "part of torch"
    devices = ("cpu", "cuda")
    compiles = True
    limits = Limits(
        dtypes=ALL_DTYPES,
        headdim_v=True,
        gqa=True,
        window=True,
        bottom_right=True,
        empty_rows=True,
        varlen=True,
        backward=True,
        capability=(7, 0),
    )

    def check(self, case: AttentionCase, machine: Machine) -> None:
        """Refuse cases that torch has not implemented.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if machine.device == "cpu" and case.has_backward:
            raise Unsupported(refusal(self.name, "mode", case.mode, "has no backward on a CPU", "fwd"))
        for field, dim in (("headdim", case.headdim), ("headdim_v", case.headdim_v)):
            if machine.device == "cuda" and dim < 16:
                raise Unsupported(refusal(self.name, field, dim, "is too small on a GPU", "at least 16"))

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D], packed [1, H, T, D]; the first call compiles."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        operands = Operands(case, inputs, heads_first=True)
        rule = Mask.of(case).rule(case, inputs)
        rows, keys = operands.q.shape[2], operands.k.shape[2]
        device = operands.q.device
        block_mask = (
            all_seen(device) if rule is None else create_block_mask(rule, None, None, rows, keys, device=str(device))
        )
        scale, gqa = case.scale, case.nheads != case.nheads_kv

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return flex_attention(q, k, v, block_mask=block_mask, scale=scale, enable_gqa=gqa)

        yield operands.launch(compiled_alone(attend))


def all_seen(device: device) -> BlockMask:
    """Return the mask that flex_attention makes if none is given.

    Made at set-up: torch cannot make it in a call that runs inside compiled code, as in a video model.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    counts = torch.ones(1, 1, 1, dtype=torch.int32, device=device)
    return BlockMask.from_kv_blocks(
        counts, torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=device), BLOCK_SIZE=NO_BLOCKS, seq_lengths=(1, 1)
    )
