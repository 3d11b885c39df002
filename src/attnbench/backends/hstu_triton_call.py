"""A session of ``hstu-triton``: the public calls of our kernels, on own copies of the inputs.

So the host time of a row is that of a user's call.  The backward is called without autograd.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch
from attnbench.backends.buffers import Buffers

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.hstu.case import HstuCase
    from attnbench.workloads.hstu.inputs import HstuInputs


class HstuSession(Buffers):
    """Own copies of the inputs of one session; a call allocates its results, as a user's call does."""

    def __init__(self, case: HstuCase, inputs: HstuInputs, changes: Mapping[str, Any]) -> None:
        from attnbench.kernels.hstu.dense import api as kernels
        from attnbench.kernels.hstu.dense.calls import call_of
        from attnbench.kernels.hstu.dense.configs import triangle_grid
        from attnbench.kernels.shared.card import processors

        super().__init__(inputs)
        self.case = case
        own = self.own
        self.qkv = own["q"], own["k"], own["v"]
        self.table: dict[str, Any] = {
            "offsets": own["seq_offsets"],
            "offsets_q": own["seq_offsets_q"] if case.delta_q is not None else None,
            "num_targets": own.get("num_targets"),
        }
        self.forward_config, self.backward_config = kernels.configs_of(
            *self.qkv,
            inputs.max_seqlen,
            changes,
            alpha=case.alpha,
            grid=triangle_grid(
                case.batch * case.nheads,
                inputs.max_seqlen_q,
                causal=case.causal,
                cached=case.delta_q is not None,
                windowed=case.max_attn_len is not None,
                processors=processors(own["q"]),
            ),
            pairs=case.batch * case.nheads,
        )
        self.arguments = self.table | {
            "max_seqlen": inputs.max_seqlen,
            "max_seqlen_q": inputs.max_seqlen_q,
            "alpha": case.alpha,
            "scaling_seqlen": case.scaling_seqlen,
            "causal": case.causal,
            "contextual_len": case.contextual_len,
            "max_attn_len": case.max_attn_len,
            "deterministic": bool(changes.get("deterministic", False)),
            # A user's call names no configuration, and neither does the row of the defaults.
            "forward": self.forward_config if changes else None,
            "backward": self.backward_config if changes else None,
        }
        self.call = call_of(*self.qkv, **self.arguments, validate=True)
        self.out: Tensor | None = None
        self.grads: dict[str, Tensor | None] = {}

    def launch(self) -> Launch:
        """Return the session's launch."""
        trains = self.case.has_backward
        kernels = self.backward_config.columns, self.backward_config.rows
        backward = " and ".join(config.short for config in kernels if config is not None)
        notes = [f"forward {self.forward_config.short}"] * (self.case.mode != "bwd") + [
            f"backward {backward}",
            "backward deterministic"
            if self.backward_config.deterministic
            else "backward adds up dQ by fp32 atomics, in another order each time",
        ] * trains
        return Launch(
            forward=self.forward,
            backward=self.backward if trains else None,
            outputs=self.outputs,
            reload=self.load,
            executed_flops=self._executed(),
            notes=tuple(notes),
        )

    def _executed(self) -> int | None:
        """FLOPs including the products that a deterministic backward repeats; partly visible tiles count in full."""
        from attnbench.workloads.hstu.work import visible_pairs, work

        case = self.case
        if not case.has_backward or self.backward_config.rows is None:
            return None
        return work(case).flops + 2 * (case.attn_dim + case.linear_dim) * case.nheads * visible_pairs(case)

    def run_forward(self) -> None:
        """Call the forward; the last result is freed first, so that peak memory is the call's own."""
        from attnbench.kernels.hstu.dense.api import hstu_attention

        self.out = None
        self.out = hstu_attention(*self.qkv, **self.arguments)

    def run_backward(self) -> None:
        """Call the backward."""
        self.grads = {}
        found = self.call.gradients(self.own["dout"], *self.qkv, *self.table.values())
        self.grads = dict(zip(("dq", "dk", "dv"), found, strict=True))

    def results(self) -> Mapping[str, Tensor]:
        """Results of the last forward."""
        assert self.out is not None  # read after a forward
        return {"out": self.out}

    def gradients(self) -> Mapping[str, Tensor]:
        """Gradients of the last backward."""
        return {name: x for name, x in self.grads.items() if x is not None}
