"""``ring-flash-attn``: zhuzilin/ring-flash-attention over FlashAttention 2, zigzag under a causal mask."""

from __future__ import annotations

from attnbench.parallel.deal import Rows
from attnbench.parallel.form import Group, ParallelForm
from attnbench.parallel.forms.torch_ring import equal_rows
from attnbench.parallel.problem import Problem


class Form(ParallelForm):
    """Sequences of one length, split into 2 W chunks; tensors [B, S / W, H, D]."""

    title = "ring-flash-attention"

    def __init__(self, problem: Problem, group: Group) -> None:
        super().__init__(problem, group)
        from ring_flash_attn import ring_flash_attn_func, zigzag_ring_flash_attn_func

        self.function = zigzag_ring_flash_attn_func if problem.causal else ring_flash_attn_func

    def rows(self) -> list[Rows]:
        """Zigzag chunks of each sequence under a causal mask, else an equal part."""
        return equal_rows(self.problem, self.group)

    def run(self) -> None:
        """Call its function on this rank's rows."""
        q, k, v = (x.unflatten(0, (len(self.problem.lengths), -1)) for x in (self.q, self.k, self.v))
        problem = self.problem
        self.out = self.function(q, k, v, softmax_scale=problem.scale, causal=problem.causal).flatten(0, 1)
