"""A session of ``flash-triton``: buffers that are there before, and the calls of our kernels on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch
from attnbench.backends.buffers import Buffers

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.backends.differentiable import Attention
    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


def function_of(case: AttentionCase, short: str) -> Attention:
    """The forward as a function of tensors [B, S, H, D] that lie in rows; its results are new tensors."""
    import torch

    from attnbench.kernels.flash import api as kernels
    from attnbench.kernels.flash.config.family import FAMILY

    said = FAMILY.split(short) if short else {}
    known: dict[tuple[object, ...], tuple[Any, Any]] = {}

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shapes = q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride()
        if shapes not in known:
            problem = kernels.problem_of(q, k, v, causal=case.causal, window=case.window, scale=case.scale)
            known[shapes] = (
                problem,
                (kernels.parse(said["forward"]) if "forward" in said else kernels.default_forward(q, k, v, problem)),
            )
        problem, config = known[shapes]
        out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        lse = torch.empty(kernels.lse_shape(q, problem), dtype=torch.float32, device=q.device)
        with torch.cuda.device_of(q):  # Triton launches on the current device
            kernels.launch_forward(q, k, v, out, lse, problem, config)
        return out

    return attend


class FlashSession(Buffers):
    """Own copies of the inputs, results and workspace of one session."""

    def __init__(self, case: AttentionCase, inputs: AttentionInputs, short: str) -> None:
        import torch

        from attnbench.kernels.flash import api as kernels
        from attnbench.kernels.flash.config.family import FAMILY

        super().__init__(inputs)
        self.case = case
        q, k, v = self.own["q"], self.own["k"], self.own["v"]
        packed = {name: self.own[name] for name in ("cu_seqlens_q", "cu_seqlens_k") if case.packed}
        packed |= {name: getattr(inputs, name) for name in ("max_seqlen_q", "max_seqlen_k") if case.packed}
        self.problem = kernels.problem_of(q, k, v, causal=case.causal, window=case.window, scale=case.scale, **packed)
        kernels.check_values(self.problem, q, k)
        said = FAMILY.split(short) if short else {}
        self.config = (
            kernels.parse(said["forward"]) if "forward" in said else kernels.default_forward(q, k, v, self.problem)
        )
        self.backward_config = (
            kernels.parse_backward(said["backward"])
            if "backward" in said
            else (kernels.default_backward(q, k, v, self.problem))
        )
        self.out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        self.lse = torch.empty(kernels.lse_shape(q, self.problem), dtype=torch.float32, device=q.device)
        self.grads: dict[str, Tensor] = {}
        if case.has_backward:
            self.grads = {f"d{name}": torch.empty_like(self.own[name]) for name in ("q", "k", "v")}
            self.workspace = kernels.workspace_of(q, self.problem, self.backward_config)

    def launch(self) -> Launch:
        """What the session hands over."""
        trains = self.case.has_backward
        sums = "" if self.backward_config.deterministic else ", dQ added up by atomics in another order each time"
        notes = [f"forward {self.config.short}"] + [f"backward {self.backward_config.short}{sums}"] * trains
        return Launch(
            forward=self.forward,
            backward=self.backward if trains else None,
            outputs=self.outputs,
            reload=self.load,
            notes=tuple(notes[self.case.mode == "bwd" :]),
        )

    def run_forward(self) -> None:
        """Launch the forward."""
        from attnbench.kernels.flash.forward import launch_forward

        own = self.own
        launch_forward(own["q"], own["k"], own["v"], self.out, self.lse, self.problem, self.config)

    def run_backward(self) -> None:
        """Launch the backward."""
        from attnbench.kernels.flash.backward import launch_backward

        own, (dq, dk, dv) = self.own, self.grads.values()
        launch_backward(
            own["q"],
            own["k"],
            own["v"],
            self.out,
            own["dout"],
            self.lse,
            dq,
            dk,
            dv,
            self.problem,
            self.backward_config,
            self.workspace,
        )

    def results(self) -> Mapping[str, Tensor]:
        """What the forward writes."""
        return {"out": self.out}

    def gradients(self) -> Mapping[str, Tensor]:
        """What the backward writes."""
        return self.grads
