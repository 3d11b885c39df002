"""``torch-ring``: torch's own `context_parallel`, which turns SDPA into a ring; with cuDNN, its fastest kernel.

Its patch of SDPA applies to the whole process and has survived an error; here the process is the rank's own.  Whether
a rank gets head and tail of a sequence is a private switch of torch, which refuses it without a causal mask.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench.parallel.deal import Rows
from attnbench.parallel.form import Group, ParallelForm
from attnbench.parallel.problem import Problem


class Form(ParallelForm):
    """Sequences of one length, split into 2 W chunks; tensors [B, H, S / W, D]."""

    title = "torch's context_parallel, cuDNN"

    def __init__(self, problem: Problem, group: Group) -> None:
        super().__init__(problem, group)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import _attention as switches
        from torch.distributed.tensor.experimental import context_parallel

        switches._cp_options.enable_load_balance = problem.causal
        mesh = init_device_mesh(group.device.type, (group.world,), mesh_dim_names=("cp",))
        # It needs a buffer to shard, of which it uses only the length; our rows are already in its order.
        positions = torch.arange(problem.lengths[0], device=group.device)[None]
        self.entered = ExitStack()
        self.entered.enter_context(context_parallel(mesh, buffers=[positions], buffer_seq_dims=[1]))

    def rows(self) -> list[Rows]:
        """Head and tail of each sequence under a causal mask, else an equal part."""
        return equal_rows(self.problem, self.group)

    def taken(self) -> None:
        """Convert to contiguous heads-first layout."""
        self.mine = tuple(_heads_first(x, len(self.problem.lengths)) for x in (self.q, self.k, self.v))

    def run(self) -> None:
        """Call SDPA, which is a ring here."""
        q, k, v = self.mine
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            self.out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=self.problem.causal, scale=self.problem.scale
            )

    def result(self) -> Tensor:
        """Convert to rows-first layout."""
        return self.out.transpose(1, 2).flatten(0, 1) if self.out.dim() == 4 else self.out


def equal_rows(problem: Problem, group: Group) -> list[Rows]:
    """Rows of sequences of one length divisible by 2 W: zigzag under a causal mask, else consecutive."""
    length, rank, world = problem.lengths[0], group.rank, group.world
    parts = [(rank, rank + 1)] if not problem.causal else [(rank, rank + 1), (2 * world - 1 - rank, 2 * world - rank)]
    step = length // (2 * world if problem.causal else world)
    starts = range(0, problem.total, length)
    return [(start + first * step, start + end * step) for start in starts for first, end in parts]


def _heads_first(x: Tensor, batch: int) -> Tensor:
    return x.unflatten(0, (batch, -1)).transpose(1, 2).contiguous()
