"""A session of ``hstu-triton``: buffers that are there before, and the calls of our kernels on them."""

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
    """Own copies of the inputs, results and workspace of one session."""

    def __init__(self, case: HstuCase, inputs: HstuInputs, changes: Mapping[str, Any]) -> None:
        import torch

        from attnbench.kernels.hstu.dense import api as kernels

        super().__init__(inputs)
        self.case = case
        own = self.own
        self.problem = kernels.Problem(
            offsets=own["seq_offsets"],
            offsets_q=own["seq_offsets_q"] if case.delta_q is not None else None,
            num_targets=own.get("num_targets"),
            max_seqlen=inputs.max_seqlen,
            max_seqlen_q=inputs.max_seqlen_q,
            alpha=case.alpha,
            scaling_seqlen=case.scaling_seqlen,
            causal=case.causal,
            contextual_len=case.contextual_len,
            max_attn_len=case.max_attn_len,
        )
        qkv = own["q"], own["k"], own["v"]
        kernels.check_tensors(*qkv, self.problem)
        kernels.check_values(*qkv, self.problem)
        self.forward_config, self.backward_config = kernels.configs_of(
            *qkv, inputs.max_seqlen, changes, alpha=case.alpha
        )
        self.out = torch.empty(*own["q"].shape[:2], own["v"].shape[2], dtype=own["q"].dtype, device=own["q"].device)
        self.grads: dict[str, Tensor] = {}
        self.workspace: Tensor | None = None
        if case.has_backward:
            self.grads = {f"d{name}": torch.empty_like(own[name]) for name in ("q", "k", "v")}
            shape = kernels.workspace_shape(own["q"], self.backward_config)
            self.workspace = None if shape is None else torch.empty(shape, dtype=torch.float32, device=self.out.device)

    def launch(self) -> Launch:
        """What the session hands over."""
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
        """With the products a deterministic backward does twice; tiles that are partly seen count as seen."""
        from attnbench.workloads.hstu.work import visible_pairs, work

        case = self.case
        if not (case.has_backward and self.backward_config.deterministic):
            return None
        return work(case).flops + 2 * (case.attn_dim + case.linear_dim) * case.nheads * visible_pairs(case)

    def run_forward(self) -> None:
        """Launch the forward."""
        from attnbench.kernels.hstu.dense.forward import launch_forward

        own = self.own
        launch_forward(own["q"], own["k"], own["v"], self.out, self.problem, self.forward_config)

    def run_backward(self) -> None:
        """Launch the backward."""
        from attnbench.kernels.hstu.dense.backward import launch_backward

        own = self.own
        dq, dk, dv = self.grads.values()
        launch_backward(
            own["q"], own["k"], own["v"], own["dout"], dq, dk, dv, self.problem, self.backward_config, self.workspace
        )

    def results(self) -> Mapping[str, Tensor]:
        """What the forward writes."""
        return {"out": self.out}

    def gradients(self) -> Mapping[str, Tensor]:
        """What the backward writes."""
        return self.grads
