"""A session of ``flash-quant``: the public call and its phases, on own copies of the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch, Preparing
from attnbench.backends.buffers import Buffers
from attnbench.errors import Unavailable

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash.quant.prepare import Quantised
    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


class QuantFunction(Preparing):
    """The operation as a function of tensors [B, S, H, D]."""

    def __init__(self, case: AttentionCase, short: str) -> None:
        self.case, self.short = case, short

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Quantise, then compute attention."""
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
    """Own copies of the inputs of one session; a call allocates its buffers, as a user's call does.

    The operation prepares in one launch.  Its phases `smooth` and `quantise` split that launch in two, which reads K
    and V from memory twice; they have buffers of their own, allocated by the first of them.
    """

    def __init__(self, case: AttentionCase, inputs: AttentionInputs, short: str) -> None:
        from attnbench.kernels.flash.quant import api

        super().__init__(inputs)
        self.qkv = self.own["q"], self.own["k"], self.own["v"]
        offsets = {name: self.own[name] for name in ("cu_seqlens_q", "cu_seqlens_k") if case.packed}
        bounds = {name: getattr(inputs, name) for name in ("max_seqlen_q", "max_seqlen_k") if case.packed}
        self.arguments: dict[str, Any] = {"causal": case.causal, "scale": case.scale, **offsets, **bounds}
        self.problem = api.quant_problem_of(*self.qkv, **self.arguments)
        api.check_offsets(self.problem, *self.qkv[:2])
        self.config = api.config_for(short or None, self.qkv[0])
        # A user's call names no configuration, and neither does the row of the default.
        self.arguments["config"] = self.config if short else None
        self.out: Tensor | None = None
        self.lse: Tensor | None = None

    def launch(self) -> Launch:
        """Return the launch of the whole operation, with its phases."""
        return Launch(
            forward=self.forward,
            outputs=self.outputs,
            reload=self.load,
            phases={"smooth": self.smooth, "quantise": self.quantise, "kernel": self.attend},
            notes=(f"forward {self.config.short}; quantisation is part of the call",),
        )

    @cached_property
    def made(self) -> Quantised:
        """The quantised tensors used by the phases."""
        from attnbench.kernels.flash.quant.api import allocate, launch_prepare

        made = allocate(*self.qkv[:2], self.problem)
        launch_prepare(*self.qkv, made, self.problem)
        return made

    @cached_property
    def results_of_phase(self) -> tuple[Tensor, Tensor]:
        """Out and lse written by the phase `kernel`."""
        import torch

        from attnbench.kernels.flash.quant.api import lse_shape

        q = self.qkv[0]
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        return out, torch.empty(lse_shape(q, self.problem), dtype=torch.float32, device=q.device)

    def smooth(self) -> None:
        """Compute statistics of K and V."""
        from attnbench.kernels.flash.quant.api import launch_smooth

        launch_smooth(*self.qkv, self.made, self.problem)

    def quantise(self) -> None:
        """Quantise Q, K and V to 8 bits."""
        from attnbench.kernels.flash.quant.api import launch_quantise

        launch_quantise(*self.qkv, self.made, self.problem)

    def attend(self) -> None:
        """Compute attention over the quantised tensors."""
        from attnbench.kernels.flash.quant.api import launch_quant

        launch_quant(self.made, *self.results_of_phase, self.problem, self.config)

    def run_forward(self) -> None:
        """Call the operation; the last results are freed first, so that peak memory is the call's own."""
        from attnbench.kernels.flash.quant.api import flash_quant_attention

        self.out = self.lse = None
        self.out, self.lse = flash_quant_attention(*self.qkv, **self.arguments)

    def run_backward(self) -> None:
        """Raise: there is no backward.

        Raises:
            Unavailable: always.
        """
        raise Unavailable("flash-quant: mode=bwd has no backward; fwd")

    def results(self) -> Mapping[str, Tensor]:
        """Results of the last forward."""
        assert self.out is not None  # read after a forward
        return {"out": self.out}

    def gradients(self) -> Mapping[str, Tensor]:
        """None."""
        return {}
