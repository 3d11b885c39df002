"""A session of ``flash-quant``: buffers that are there before, and the launches of our kernels on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch, Preparing
from attnbench.backends.buffers import Buffers
from attnbench.errors import Unavailable

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


class QuantFunction(Preparing):
    """The op as a function of anybody's tensors, [B, S, H, D]."""

    def __init__(self, case: AttentionCase, short: str) -> None:
        self.case, self.short = case, short

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Quantise, then attend."""
        import torch

        from attnbench.kernels.flash.quant import api

        problem = api.quant_problem_of(q, k, v, causal=self.case.causal, scale=self.case.scale)
        config = api.config_for(self.short or None, q)
        with torch.cuda.device_of(q):  # Triton launches on the current device
            with self.preparing():
                made = api.allocate(q, k, problem)
                api.launch_prepare(q, k, v, made, problem)
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
            lse = torch.empty(api.lse_shape(q, problem), dtype=torch.float32, device=q.device)
            api.launch_quant(made, out, lse, problem, config)
        return out


class QuantSession(Buffers):
    """Own copies of the inputs, quantised tensors and results of one session.

    The op prepares in one launch; its phases `smooth` and `quantise` are that launch cut in two, which reads K and V
    from memory twice.
    """

    def __init__(self, case: AttentionCase, inputs: AttentionInputs, short: str) -> None:
        import torch

        from attnbench.kernels.flash.quant import api

        super().__init__(inputs)
        q, k, v = self.own["q"], self.own["k"], self.own["v"]
        packed = {name: self.own[name] for name in ("cu_seqlens_q", "cu_seqlens_k") if case.packed}
        packed |= {name: getattr(inputs, name) for name in ("max_seqlen_q", "max_seqlen_k") if case.packed}
        self.problem = api.quant_problem_of(q, k, v, causal=case.causal, scale=case.scale, **packed)
        api.check_offsets(self.problem, q, k)
        self.config = api.config_for(short or None, q)
        self.made = api.allocate(q, k, self.problem)
        self.out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self.lse = torch.empty(api.lse_shape(q, self.problem), dtype=torch.float32, device=q.device)

    def launch(self) -> Launch:
        """What the session hands over; the whole op, and its phases apart."""
        return Launch(
            forward=self.forward,
            outputs=self.outputs,
            reload=self.load,
            phases={"smooth": self.smooth, "quantise": self.quantise, "kernel": self.attend},
            notes=(f"forward {self.config.short}; quantisation is part of the call",),
        )

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V."""
        return self.own["q"], self.own["k"], self.own["v"]

    def smooth(self) -> None:
        """Statistics of K and V."""
        from attnbench.kernels.flash.quant.api import launch_smooth

        launch_smooth(*self.operands, self.made, self.problem)

    def quantise(self) -> None:
        """Q, K and V in 8 bits."""
        from attnbench.kernels.flash.quant.api import launch_quantise

        launch_quantise(*self.operands, self.made, self.problem)

    def attend(self) -> None:
        """Attention over what was quantised."""
        from attnbench.kernels.flash.quant.api import launch_quant

        launch_quant(self.made, self.out, self.lse, self.problem, self.config)

    def run_forward(self) -> None:
        """Prepare and attend."""
        from attnbench.kernels.flash.quant.api import launch_prepare

        launch_prepare(*self.operands, self.made, self.problem)
        self.attend()

    def run_backward(self) -> None:
        """There is none.

        Raises:
            Unavailable: always.
        """
        raise Unavailable("flash-quant: mode=bwd has no backward; fwd")

    def results(self) -> Mapping[str, Tensor]:
        """What the forward writes."""
        return {"out": self.out}

    def gradients(self) -> Mapping[str, Tensor]:
        """None."""
        return {}
